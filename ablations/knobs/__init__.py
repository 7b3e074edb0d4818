"""The design choices: one pure function per option, torch only."""
