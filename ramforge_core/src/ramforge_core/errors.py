"""Every error that RAMforge raises on purpose.

Each says what happened, where (file, tensor, key), what was expected, what was found and what to do. The class
is the field's own name for the fault and also the fitting built-in, so that callers need not know RAMforge.
Exit codes are the command line's business: see ``docs/cli.md``.
"""

from __future__ import annotations

from typing import ClassVar


class RamforgeError(Exception):
    """Base of all errors; ``reason`` is a stable code for programs, ``str(error)`` one sentence for people."""

    reason: ClassVar[str] = "error"


class ParameterError(RamforgeError, ValueError):
    """An argument or option has a value that cannot be used."""

    reason = "bad-parameter"


class ModelNotFoundError(RamforgeError, LookupError):
    """No file, folder or known model name matches what was asked for."""

    reason = "model-not-found"


class GGUFError(RamforgeError, ValueError):
    """The file is damaged, cut short, hostile or not GGUF at all."""

    reason = "bad-file"


class MetadataError(GGUFError):
    """A metadata key is missing or holds something else than its meaning needs."""

    reason = "bad-metadata"


class TensorError(GGUFError):
    """A tensor is missing, misshapen, double or outside the file."""

    reason = "bad-tensor"


class UnsupportedError(RamforgeError, LookupError):
    """The file is sound, but no installed plugin can run it."""

    reason = "unsupported"


class PluginError(RamforgeError):
    """Base of everything that goes wrong with a plugin."""

    reason = "plugin"


class PluginLoadError(PluginError, ImportError):
    """A plugin that is needed exists but cannot be used; the cause is chained."""

    reason = "plugin-broken"


class DuplicatePluginError(PluginError, LookupError):
    """Two distributions provide the same key, and the key is needed."""

    reason = "plugin-duplicate"


class UnknownPluginError(PluginError, LookupError):
    """No installed plugin has this key."""

    reason = "plugin-unknown"


class BackendError(RamforgeError, RuntimeError):
    """A backend was asked for and cannot work on this machine, or failed in a computation."""

    reason = "backend"


class ShapeError(RamforgeError, ValueError):
    """An array has another shape, type or size than the contract says."""

    reason = "bad-shape"


class NonFiniteError(RamforgeError, ArithmeticError):
    """The logits are not numbers; the weights or the file are damaged."""

    reason = "non-finite"


class VerificationError(RamforgeError, ArithmeticError):
    """The same model computed other logits in another memory budget: a fault of ours or of the machine."""

    reason = "verification"


class ContextFullError(RamforgeError, ValueError):
    """The prompt does not fit the context."""

    reason = "context-full"


class QueueFullError(RamforgeError, RuntimeError):
    """So many requests wait already that another one is refused."""

    reason = "queue-full"


class SessionError(RamforgeError, ValueError):
    """A saved session is damaged, of another version or of another model."""

    reason = "session"


class TemplateError(RamforgeError, ValueError):
    """The chat template of the model is faulty, unsafe or refuses these messages."""

    reason = "template"


class DownloadError(RamforgeError, OSError):
    """A model could not be fetched, or what arrived is not what was asked for."""

    reason = "download"


class OutOfMemoryError(RamforgeError, MemoryError):
    """An allocation failed; says how much was needed."""

    reason = "memory"


class BudgetExceededError(RamforgeError, MemoryError):
    """Memory was asked for that the budget does not have. All attributes in bytes; nothing was allocated.

    tag : what the memory was for.   requested : bytes asked for, beyond what this holder had.
    used : bytes of the budget that were in use.   limit : bytes of the whole budget.
    """

    reason = "budget"

    def __init__(self, tag: str, requested: int, used: int, limit: int) -> None:
        super().__init__(tag, requested, used, limit)
        self.tag = tag
        self.requested = requested
        self.used = used
        self.limit = limit

    def __str__(self) -> str:
        from ramforge_core.sizes import format_size  # which needs ParameterError

        requested, used, limit = map(format_size, (self.requested, self.used, self.limit))
        missing = format_size(self.requested + self.used - self.limit)
        return (
            f"{self.tag} needs {requested} more, but {used} of the memory budget of {limit} are in use: {missing} are "
            "missing; give a larger --ram or a smaller --ctx"
        )


class BudgetTooSmallError(BudgetExceededError):
    """The model cannot run in this budget. ``minimum`` : the smallest budget that works, in bytes."""

    reason = "budget-too-small"

    def __init__(self, requested: int, used: int, limit: int, context: int) -> None:
        super().__init__("the model at its smallest", requested, used, limit)
        self.minimum = requested + used
        self.context = context

    def __str__(self) -> str:
        from ramforge_core.sizes import format_size

        # Half a MiB more: no two processes start with the same size, and what is named must work in the next one.
        named = -(-(self.minimum + (1 << 19)) // (1 << 20))
        return (
            f"a memory budget of {format_size(self.limit)} is too small: this model with a context of {self.context} "
            f"tokens needs at least {format_size(self.minimum)}, of which the process itself takes "
            f"{format_size(self.used)}; "
            f"give --ram {named}M or more"
        )


class Interrupted(RamforgeError):
    """The stop flag was raised while a pass was running; nothing of that pass may be used."""

    reason = "interrupted"
