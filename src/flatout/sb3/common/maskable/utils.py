"""sb3-contrib's functions for action masks."""

from flatout.sb3.common.wrappers import get_action_masks as get_action_masks
from flatout.sb3.common.wrappers import is_masking_supported as is_masking_supported
