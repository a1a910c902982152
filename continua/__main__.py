"""``python -m continua``, as ``torchrun -m continua fit text`` needs it."""

from continua.cli import main

if __name__ == "__main__":
    main()
