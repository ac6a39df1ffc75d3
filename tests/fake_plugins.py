"""Fake plugins for the tests of the plugin host: sources of small modules, and a place to install them."""

from __future__ import annotations

import logging

from ramforge_core.plugins import Registry
from ramforge_core.testing.fake_install import fake_install

QUANT = """
import numpy as np
from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import KernelFunctions, QuantFormat, QuantKernels

class {cls}(QuantFormat):
    name, ggml_type, block_values, block_bytes = {name!r}, {ggml_type}, 32, 16
    def decode(self, blocks):
        return np.zeros((len(blocks), 32), np.float32)
    {extra}

@hookimpl
def ramforge_quant_formats():
    return [{cls}()]
"""
KERNELS = """
    @property
    def kernels(self):
        return QuantKernels({abi}, "f32", {{"portable": KernelFunctions(None, None)}}, None)
"""
ARCHITECTURE = """
from ramforge_core.architecture import Architecture
from ramforge_core.hookspecs import hookimpl

class Arch(Architecture):
    key = {key!r}
    runnable = {runnable}
    def config(self, metadata): ...
    def tensors(self, config): return ()
    def build(self, config, g): ...

@hookimpl
def ramforge_architectures():
    return [Arch()]
"""
BACKEND = """
from ramforge_core.backend import Backend
from ramforge_core.hookspecs import hookimpl

class Fake(Backend):
    key, priority = {key!r}, {priority}
    def available(self): {available}
    def describe(self): return {{"isa": "none", "threads": "1"}}
    def compile(self, graph, weights, limits): ...

@hookimpl
def ramforge_backends():
    return [Fake()]
"""

COMMAND = """
import click
from ramforge_core.hookspecs import hookimpl

@click.command()
def hello():
    '''Say hello.'''
    click.echo("hello from a plugin")

@hookimpl
def ramforge_commands():
    return [hello]
"""

TOKENIZER = """
from ramforge_core.errors import MetadataError
from ramforge_core.hookspecs import hookimpl
from ramforge_core.tokenizer import Tokenizer

class Fake(Tokenizer):
    key = "letters"
    @classmethod
    def from_metadata(cls, metadata):
        raise MetadataError("tokenizer.ggml.pre is 'odd', expected 'even'")
    encode = piece = token_id = is_control = control_texts = detokenize = None

@hookimpl
def ramforge_tokenizers():
    return [Fake]
"""
SOURCE = """
from ramforge_core.hookspecs import hookimpl
from ramforge_core.sources import ModelSource

class Shelf(ModelSource):
    key, names = "shelf", ["book"]
    def claims(self, name): return name == "book"
    def find(self, name): return None
    def filename(self, name): return "book.gguf"
    def fetch(self, name, target, progress): ...

@hookimpl
def ramforge_model_sources():
    return [Shelf()]
"""


def quant(name: str, ggml_type: int = 900, extra: str = "", cls: str = "Format") -> str:
    return QUANT.format(name=name, ggml_type=ggml_type, extra=extra, cls=cls)


class Site:
    """A folder of fake distributions on ``sys.path``, and registries that see nothing else."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.names = []
        self.modules = set()
        monkeypatch.syspath_prepend(folder)

    def add(self, distribution, entry_points, modules, **more):
        fake_install(self.folder, distribution, entry_points, modules, **more)
        self.names.append(distribution)
        self.modules |= set(modules)

    def quant(self, distribution, key, source, module=None, **more):
        module = module or "fake_" + distribution.replace("-", "_")
        self.add(distribution, {"ramforge.quants": {key: module}}, {module: source}, **more)

    def registry(self, **environ) -> Registry:
        return Registry.discover({"RAMFORGE_PLUGINS": " ".join(self.names) or "none", **environ})


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def architecture(site, distribution, runnable, key="zeta"):
    module = "fake_" + distribution.replace("-", "_")
    source = ARCHITECTURE.format(key=key, runnable=runnable)
    site.add(distribution, {"ramforge.architectures": {key: module}}, {module: source})


def backend(site, key, priority=0, available="return None"):
    module = f"fake_backend_{key}"
    source = BACKEND.format(key=key, priority=priority, available=available)
    site.add(f"ramforge-backend-{key}", {"ramforge.backends": {key: module}}, {module: source})
