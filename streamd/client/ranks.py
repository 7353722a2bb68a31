"""The rank of this process among data-parallel processes: from the library that it initialized, or from its launcher.

Pure: modules and environment variables are passed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from streamd.errors import ConfigError

Environment = Mapping[str, str]

_TORCH: Final = ("RANK", "WORLD_SIZE")
_HOROVOD: Final = ("HOROVOD_RANK", "HOROVOD_SIZE")
_MPI: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and Intel MPI
)
_SLURM: Final = ("SLURM_PROCID", "SLURM_NTASKS")
_TRAINING_TASKS: Final = ("chief", "master", "worker")  # of a TF_CONFIG, in the order of their ranks


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """The rank and world that a launcher or a library gives this process; `variables` says where, for messages."""

    rank: int
    world: int
    variables: str


def find_rank(environ: Environment, world: int = 1, libraries: Sequence[ProcessRank] = ()) -> tuple[int, int]:
    """Returns (rank, world) of this process; (0, 1) if no launcher has set any, as when it was started by hand.

    `libraries` has what `find_library_ranks` found. It wins over the environment, which an outer launcher may have
    left, and which says nothing of processes that were spawned. Only torchrun's own variables must agree with it.

    Reads the variables of torchrun, Horovod, Open MPI, MPICH, Intel MPI and srun, and TF_CONFIG. When one launcher
    started another, the inner one decides: torchrun before all others, MPI before SLURM, a launcher of several
    processes before one of a single process.

    world: the world that the caller expects; 1 accepts the one that is found. Raises ConfigError, with the variables,
    when two launchers or libraries disagree, when a value is invalid, or when the world is another than expected.
    """
    if libraries:
        by_torchrun = _parse_rank_variables(environ, _TORCH) if "TORCHELASTIC_RUN_ID" in environ else ()
        several = [*libraries, *by_torchrun]
    else:
        said = list(_find_launcher_ranks(environ))
        several = [each for each in said if each.world > 1] or said
    for other in several[1:]:
        if (other.rank, other.world) != (several[0].rank, several[0].world):
            raise ConfigError(
                f"{several[0].variables} and {other.variables} disagree on which rank this process is: "
                f"{'' if libraries else 'unset the ones that do not apply, or '}subscribe with rank= and world= as "
                "numbers"
            )
    found = several[0] if several else ProcessRank(0, 1, "no launcher has set its environment variables")
    if world not in {1, found.world}:
        raise ConfigError(
            f'world={world} was given with rank="auto", but this process is in a world of {found.world} '
            f"({found.variables}): leave world out, or start {world} processes"
        )
    return found.rank, found.world


def find_library_ranks(modules: Mapping[str, Any]) -> list[ProcessRank]:
    """Returns the ranks of this process in the libraries among `modules` that are initialized for several processes.

    These are torch.distributed, jax.distributed and Keras's distribution. Nothing is imported: `modules` is
    sys.modules.
    """
    found: list[tuple[str, int, int]] = []
    torch = modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        found.append(("torch.distributed", torch.get_rank(), torch.get_world_size()))
    jax = modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if is_initialized is None:  # JAX before 0.5.1 has no public way to ask
        state = getattr(modules.get("jax._src.distributed"), "global_state", None)
        is_initialized = partial(bool, getattr(state, "client", None))
    # Counting the processes starts JAX's backend, so it is done only where the library is initialized.
    if jax is not None and is_initialized():
        found.append(("jax.distributed", jax.process_index(), jax.process_count()))
    keras = getattr(modules.get("keras"), "distribution", None)
    distribution = None if keras is None else keras.distribution()
    processes = getattr(distribution, "num_processes", getattr(distribution, "_num_process", 1))
    found = [each for each in found if each[2] > 1]
    if distribution is not None and processes > 1:
        rank, shards = distribution._process_id, processes  # noqa: SLF001 - Keras before 3.15 has nothing public
        if hasattr(distribution, "data_shard_id"):
            # Processes that hold parts of one replica of the model take the same batches.
            rank, shards = distribution.data_shard_id, min(processes, distribution.num_model_replicas)
        found.append(("keras.distribution", rank, shards))
    return [_check_rank(rank, world, f"{library} (rank {rank} of {world})") for library, rank, world in found]


def _find_launcher_ranks(environ: Environment) -> Iterator[ProcessRank]:
    """Yields the ranks that launchers have set for this process; only torchrun's where torchrun started it."""
    # Another launcher may have started torchrun once on each node; its variables then count nodes and not processes.
    if "TORCHELASTIC_RUN_ID" in environ:
        yield from _parse_rank_variables(environ, _TORCH)
        return
    by_mpi = [said for names in _MPI for said in _parse_rank_variables(environ, names)]
    yield from by_mpi
    yield from _parse_rank_variables(environ, _TORCH)
    yield from _parse_rank_variables(environ, _HOROVOD)
    yield from _parse_tf_config(environ)
    # Outside of a step, as in a batch script, SLURM's numbers describe the whole job. mpirun starts its helpers as a
    # step, so the numbers of MPI, if there are any, replace SLURM's.
    if "SLURM_STEP_ID" in environ and not by_mpi:
        yield from _parse_rank_variables(environ, _SLURM)


def _parse_rank_variables(environ: Environment, names: tuple[str, str]) -> Iterator[ProcessRank]:
    """Reads a rank and a world from two variables. Raises ConfigError if only one is set or a value is invalid."""
    set_ = [name for name in names if name in environ]
    if not set_:
        return
    spelled = ", ".join(f"{name}={environ[name]}" for name in set_)
    if len(set_) == 1:
        missing = next(name for name in names if name not in environ)
        raise ConfigError(f"{spelled} is set, but {missing} is not: set both, or subscribe with rank= and world=")
    try:
        rank, world = (int(environ[name]) for name in names)
    except ValueError:
        raise ConfigError(f"{spelled}: these must be whole numbers") from None
    yield _check_rank(rank, world, spelled)


def _parse_tf_config(environ: Environment) -> Iterator[ProcessRank]:
    """Reads the rank of a task from TF_CONFIG: its position among the tasks that train. Raises ConfigError."""
    if "TF_CONFIG" not in environ:
        return
    try:
        config: Any = json.loads(environ["TF_CONFIG"])
        sizes = {kind: len(config.get("cluster", {}).get(kind, [])) for kind in _TRAINING_TASKS}
        kind, index = config.get("task", {}).get("type"), int(config.get("task", {}).get("index", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"TF_CONFIG does not have the form that TensorFlow expects ({error}): {environ['TF_CONFIG'][:200]}"
        ) from error
    if not any(sizes.values()):
        return  # it names no cluster
    spelled = f"TF_CONFIG, task {kind} {index} of {', '.join(f'{sizes[each]} {each}' for each in sizes if sizes[each])}"
    if kind not in sizes:
        raise ConfigError(f"{spelled}: this task is not one of those that train; subscribe with rank= and world=")
    if not 0 <= index < sizes[kind]:
        raise ConfigError(f"{spelled}: there is no such task")
    before = _TRAINING_TASKS[: _TRAINING_TASKS.index(kind)]
    yield _check_rank(sum(sizes[each] for each in before) + index, sum(sizes.values()), spelled)


def _check_rank(rank: int, world: int, variables: str) -> ProcessRank:
    if not 0 <= rank < world:
        raise ConfigError(f"{variables}: rank {rank} of world {world}, and ranks count from 0 to world - 1")
    return ProcessRank(rank, world, variables)
