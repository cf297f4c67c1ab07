"""``python -m fa3gen.cli``"""

from fa3gen.cli import main

if __name__ == "__main__":
    main()
