"""Coverage-guided fuzzing of everything that a hostile file reaches; docs/fuzzing.md says how to run it.

One module for each target, with two functions: ``seeds()``, inputs to start from, and ``check(data)``, which raises
where the promise is broken. `target` holds the promise, ``python -m fuzz`` runs the engine, and
``tests/test_fuzz_corpus.py`` tries the kept corpus without it.
"""
