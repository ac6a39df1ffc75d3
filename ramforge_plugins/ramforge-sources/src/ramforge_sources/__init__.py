"""The model sources that come with RAMforge: package indexes and Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.sources import ModelSource
from ramforge_sources.hugging_face import HuggingFaceSource
from ramforge_sources.package_index import PackageIndexSource

__all__ = ["HuggingFaceSource", "PackageIndexSource", "ramforge_model_sources"]


@hookimpl
def ramforge_model_sources() -> Sequence[ModelSource]:
    return [PackageIndexSource(), HuggingFaceSource()]
