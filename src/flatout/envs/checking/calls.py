"""Names of calls, for messages; an environment's methods have their own."""

MODULE, CONSTRUCTOR = "import of its module", "constructor"

CLOSING = ("close", "second close")

ATTRIBUTES = "look-up of its attributes (__getattr__)"

SPACES = "reading of its spaces (their attributes and sample)"

CONTAINS, COMPARISON = "contains of its observation_space", "comparison of its spaces (==)"

READING = "reading of what reset or step returned (observation, reward, info)"
"""The time after a call, in which methods of the returned objects are called."""

MASKING = "call of action_masks, or the reading of its info"

REWARDS = "call of compute_reward, for many goals at once"

OWN_WORK = "random actions, which the checker draws"
