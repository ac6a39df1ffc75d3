"""Conformance of architectures: what core relies on, for anybody's plugin to run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs
import pytest

from ramforge_core.architecture import Architecture, ModelConfig, TensorSpec
from ramforge_core.errors import MetadataError, RamforgeError, TensorError
from ramforge_core.gguf import Metadata, TensorInfo
from ramforge_core.graph import Graph, GraphBuilder
from ramforge_core.model import check_tensors


class ArchitectureTests:
    """Subclass it and override the two fixtures."""

    @pytest.fixture
    def architecture(self) -> Architecture:
        raise NotImplementedError("override the fixture `architecture`: return an instance of your class")

    @pytest.fixture
    def metadata(self) -> Metadata:
        raise NotImplementedError(
            "override the fixture `metadata`: Metadata.from_dict({...}) of a small model"
        )

    @pytest.fixture
    def specs(self, architecture: Architecture, metadata: Metadata) -> list[TensorSpec]:
        return list(architecture.tensors(architecture.config(metadata)))

    def build(self, architecture: Architecture, metadata: Metadata, specs: list[TensorSpec]) -> Graph:
        builder = GraphBuilder({s.name: s.shape for s in specs})
        architecture.build(architecture.config(metadata), builder)
        return builder.finish()

    def test_key(self, architecture: Architecture) -> None:
        """A1: the key is a non-empty lower-case name, as in general.architecture."""
        assert architecture.key
        assert architecture.key == architecture.key.lower()

    def test_config_is_frozen(self, architecture: Architecture, metadata: Metadata) -> None:
        """A2: config gives a frozen ModelConfig with positive sizes."""
        config = architecture.config(metadata)
        assert isinstance(config, ModelConfig)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            config.block_count = 7  # type: ignore[misc]
        assert min(config.context_length, config.embedding_length, config.block_count, config.vocab_size) > 0

    def test_missing_keys_are_named(self, architecture: Architecture, metadata: Metadata) -> None:
        """A3: without one of its keys the configuration has a default, or the error names that key."""
        values = dict(metadata)
        for key in [k for k in values if k.startswith(architecture.key + ".")]:
            rest = Metadata.from_dict({k: v for k, v in values.items() if k != key})
            with contextlib.suppress(MetadataError), _names_in_error(key):
                architecture.config(rest)

    def test_senseless_values_are_refused(self, architecture: Architecture, metadata: Metadata) -> None:
        """A4: zero, negative or text where a size belongs is a RamforgeError, never another exception."""
        values = dict(metadata)
        for key in [k for k in values if k.startswith(architecture.key + ".")]:
            for bad in (0, -1, "seven"):
                with contextlib.suppress(RamforgeError):
                    architecture.tensors(architecture.config(Metadata.from_dict({**values, key: bad})))

    def test_tensors_are_sound(self, specs: list[TensorSpec]) -> None:
        """A5: tensor names are unique, shapes have one or two positive dimensions or three for experts."""
        names = [s.name for s in specs]
        assert len(set(names)) == len(names)
        for spec in specs:
            assert 1 <= len(spec.shape) <= 3, spec
            assert min(spec.shape) > 0, spec

    def test_graph_uses_what_is_declared(
        self, architecture: Architecture, metadata: Metadata, specs: list[TensorSpec]
    ) -> None:
        """A6: the graph reads declared tensors only, and all of those that the file must hold."""
        used = set(self.build(architecture, metadata, specs).weights)
        assert used <= {s.name for s in specs}
        assert {s.name for s in specs if s.required} <= used

    def test_graph_without_optional_tensors(
        self, architecture: Architecture, metadata: Metadata, specs: list[TensorSpec]
    ) -> None:
        """A7: the graph can be built from the required tensors alone."""
        required = [s for s in specs if s.required]
        assert set(self.build(architecture, metadata, required).weights) == {s.name for s in required}

    def test_logits_are_the_vocabulary(
        self, architecture: Architecture, metadata: Metadata, specs: list[TensorSpec]
    ) -> None:
        """A8: the last stage works on wanted tokens and ends in one logit for each token of the vocabulary."""
        graph = self.build(architecture, metadata, specs)
        assert graph.logits.width == architecture.config(metadata).vocab_size
        assert graph.stages[-1].rows == "wanted"
        assert graph.stages[-1].ops[-1].out == graph.logits

    def test_graph_is_declarative(
        self, architecture: Architecture, metadata: Metadata, specs: list[TensorSpec]
    ) -> None:
        """A9: building twice gives equal graphs."""
        assert self.build(architecture, metadata, specs) == self.build(architecture, metadata, specs)

    def test_missing_and_misshapen_tensors_are_named(
        self, architecture: Architecture, specs: list[TensorSpec]
    ) -> None:
        """A10: a required tensor that is missing or has another shape is named before anything is read."""
        tensors = {s.name: tensor_info(s.name, s.shape) for s in specs if s.required}
        for spec in (s for s in specs if s.required):
            rest = {n: t for n, t in tensors.items() if n != spec.name}
            with pytest.raises(TensorError, match=f"missing tensor '{spec.name}'"):
                check_tensors(rest, architecture.key, specs)
            odd = {**tensors, spec.name: tensor_info(spec.name, (*spec.shape[:-1], spec.shape[-1] + 1))}
            with pytest.raises(TensorError, match=spec.name):
                check_tensors(odd, architecture.key, specs)


@contextlib.contextmanager
def _names_in_error(key: str) -> Iterator[None]:
    try:
        yield
    except MetadataError as error:
        if key not in str(error):
            raise AssertionError(f"the error does not name {key!r}: {error}") from error
        raise


def tensor_info(name: str, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, ggml_type=0, type_name="f32", file=0, offset=0, nbytes=0)
