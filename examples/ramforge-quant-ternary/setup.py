from setuptools import setup

setup(
    cffi_modules=["src/ramforge_quant_ternary/_build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},  # one wheel for every Python from 3.10 on
)
