"""RAMforge core: see ``docs/architecture.md``."""
