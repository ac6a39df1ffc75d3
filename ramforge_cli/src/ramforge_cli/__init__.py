"""The command line of RAMforge. Start at `ramforge_cli.program`; everything that computes is in ramforge_core."""
