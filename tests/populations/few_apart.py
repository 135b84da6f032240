"""The command, for which more than two members of a population are many.

python -m tests.populations.few_apart train ...
"""

from __future__ import annotations

import sys

from flatout.__main__ import main
from flatout.populations import population

if __name__ == "__main__":
    population.KEPT_APART = 2
    sys.exit(main(sys.argv[1:]))
