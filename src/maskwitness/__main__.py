"""Run the command line as ``python -m maskwitness``."""

from maskwitness.cli import main

main()
