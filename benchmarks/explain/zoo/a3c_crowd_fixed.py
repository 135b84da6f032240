"""`a3c_crowd.py` with one PyTorch thread in each process."""

import a3c_crowd

a3c_crowd.THREADS = 1

if __name__ == "__main__":
    a3c_crowd.main()
