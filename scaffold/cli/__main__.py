"""`python -m scaffold.cli`."""

from scaffold.cli import main

if __name__ == "__main__":
    main()
