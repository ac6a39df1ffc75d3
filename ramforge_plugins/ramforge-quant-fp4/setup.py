from setuptools import setup

setup(
    cffi_modules=["src/ramforge_quant_fp4/_build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
