"""The command line of RAMforge. Start at `ramforge_cli.main`; everything that computes is in ramforge_core."""
