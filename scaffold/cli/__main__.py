"""`python -m scaffold.cli`."""

from scaffold.cli.app import main

if __name__ == "__main__":
    main()
