"""What `SIM` says to a device of one vendor."""

from __future__ import annotations

from collections.abc import Collection

from gpu.core.errors import ConfigError


def simulated_chips(setting: str, device: str, known: Collection[str]) -> list[str]:
    """The chips that `SIM` names, in any case, for a device with models of those that are `known`.

    Raises ConfigError for others: all chips of one process are of one vendor.
    """
    chips = [name.strip().lower() for name in setting.split(",")]
    for name in chips:
        if name not in known:
            raise ConfigError(
                f"SIM={setting}: {device} has no model of {name!r} that runs kernels, but of "
                f"{', '.join(known)}"
            )
    return chips
