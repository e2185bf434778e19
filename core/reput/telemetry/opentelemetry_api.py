"""require_opentelemetry: the extra ``otel`` is installed, or an error says so."""

from __future__ import annotations

from reput.errors import ConfigError

__all__ = ["require_opentelemetry"]


def require_opentelemetry() -> None:
    """Raise ConfigError unless OpenTelemetry's API is installed."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"telemetry needs a library that is not installed: error={error}",
            'Install it: pip install "reput[otel]".',
        ) from None
