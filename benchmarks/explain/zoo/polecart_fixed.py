"""`polecart`, whose agent acts in 16 environments at once; as many steps to an update."""

import polecart

if __name__ == "__main__":
    polecart.main(polecart.Args(num_envs=16, num_steps=16))
