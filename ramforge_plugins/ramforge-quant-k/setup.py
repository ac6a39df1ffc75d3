from setuptools import setup

setup(
    cffi_modules=["src/ramforge_quant_k/_build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
