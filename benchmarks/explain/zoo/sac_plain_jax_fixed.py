"""`sac_plain_jax.py` with its update jitted."""

import jax
import sac_plain_jax

sac_plain_jax.update = jax.jit(sac_plain_jax.update)

if __name__ == "__main__":
    sac_plain_jax.main()
