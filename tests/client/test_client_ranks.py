"""The rank of a process, from the environment variables of its launcher."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from streamd.client.ranks import find_library_ranks, find_rank
from streamd.errors import ConfigError

TORCH = {"RANK": "3", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}
ALONE = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}


def tf_config(kind: str, index: int, **cluster: int) -> dict[str, str]:
    hosts = {name: [f"host{number}:1" for number in range(count)] for name, count in cluster.items()}
    return {"TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (0, 1)),
        (TORCH, (3, 8)),
        (SLURM, (1, 4)),
        (MPI, (5, 6)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        (tf_config("worker", 1, worker=3), (1, 3)),
        (tf_config("worker", 1, chief=1, worker=2, ps=2), (2, 3)),
        (tf_config("chief", 0, chief=1, worker=2), (0, 3)),
        ({"TF_CONFIG": "{}"}, (0, 1)),
    ],
)
def test_every_launcher_is_understood(environ: dict[str, str], place: tuple[int, int]) -> None:
    assert find_rank(environ) == place


def test_a_slurm_batch_script_outside_a_step_has_no_rank() -> None:
    assert find_rank({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == (0, 1)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({**TORCH, **SLURM, "TORCHELASTIC_RUN_ID": "none"}, (3, 8)),
        ({**MPI, **SLURM}, (5, 6)),
        ({**TORCH, **ALONE}, (3, 8)),
        ({"RANK": "0", "WORLD_SIZE": "1", **SLURM}, (1, 4)),
    ],
    ids=["torchrun in srun", "mpirun in srun", "a shell of srun's", "one of a single"],
)
def test_the_inner_of_two_launchers_gives_the_rank(environ: dict[str, str], place: tuple[int, int]) -> None:
    assert find_rank(environ) == place


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({**TORCH, **SLURM}, "RANK=3, WORLD_SIZE=8 and SLURM_PROCID=1, SLURM_NTASKS=4 disagree.*unset the ones"),
        ({"RANK": "0"}, "RANK=0 is set, but WORLD_SIZE is not"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK=8, WORLD_SIZE=8: rank 8 of world 8, and ranks count from 0"),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK=-1, PMI_SIZE=2: rank -1 of world 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one, WORLD_SIZE=2: these must be whole numbers"),
        (tf_config("ps", 0, worker=2, ps=1), "TF_CONFIG, task ps 0 of 2 worker: this task is not one of those that"),
        (tf_config("worker", 2, worker=2), "task worker 2 of 2 worker: there is no such task"),
        ({"TF_CONFIG": "worker"}, "TF_CONFIG does not have the form that TensorFlow expects .*: worker$"),
        ({"TF_CONFIG": '{"cluster": 3}'}, "TF_CONFIG does not have the form that TensorFlow expects"),
    ],
)
def test_inconsistent_launcher_variables_are_refused_by_name(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_rank(environ)


def test_a_given_world_must_match_the_launchers() -> None:
    assert find_rank(TORCH, world=8) == (3, 8)
    with pytest.raises(
        ConfigError, match=r'with rank="auto", but this process is in a world of 8 \(RANK=3, WORLD_SIZE=8\)'
    ):
        find_rank(TORCH, world=4)
    with pytest.raises(ConfigError, match=r"a world of 1 \(no launcher has set its environment variables\)"):
        find_rank({}, world=2)


# --- libraries


def torch_of(rank: int, world: int, *, available: bool = True) -> dict[str, Any]:
    library = SimpleNamespace(is_available=lambda: available)
    if available:
        started = {"is_initialized": lambda: world > 0, "get_rank": lambda: rank, "get_world_size": lambda: world}
        vars(library).update(started)
    return {"torch.distributed": library}


def jax_of(rank: int, world: int) -> dict[str, Any]:
    """An initialized JAX, or one that must not be asked, since it would start its backend."""
    distributed = SimpleNamespace(is_initialized=lambda: world > 0)
    counted = {"process_index": lambda: rank, "process_count": lambda: world} if world else {}
    return {"jax": SimpleNamespace(distributed=distributed, **counted)}


def jax_0_4_of(rank: int, world: int) -> dict[str, Any]:
    counted = {"process_index": lambda: rank, "process_count": lambda: world}
    state = SimpleNamespace(global_state=SimpleNamespace(client=object()))
    return {"jax": SimpleNamespace(distributed=SimpleNamespace(), **counted), "jax._src.distributed": state}


def keras_3_12_of(rank: int, world: int) -> dict[str, Any]:
    present = SimpleNamespace(_process_id=rank, _num_process=world)
    return {"keras": SimpleNamespace(distribution=SimpleNamespace(distribution=lambda: present))}


def keras_of(shard: int, replicas: int, processes: int) -> dict[str, Any]:
    present = SimpleNamespace(
        _process_id=shard, num_processes=processes, num_model_replicas=replicas, data_shard_id=shard
    )
    return {"keras": SimpleNamespace(distribution=SimpleNamespace(distribution=lambda: present if processes else None))}


@pytest.mark.parametrize(
    ("modules", "environ", "place"),
    [
        (torch_of(1, 2), {}, (1, 2)),
        (torch_of(1, 2), TORCH, (1, 2)),
        (torch_of(3, 8), {**TORCH, "TORCHELASTIC_RUN_ID": "none"}, (3, 8)),
        (jax_of(1, 3), SLURM, (1, 3)),
        (keras_of(1, 4, 2), MPI, (1, 2)),
        (keras_3_12_of(1, 2), MPI, (1, 2)),
        (jax_0_4_of(2, 3), SLURM, (2, 3)),
        ({**jax_of(0, 2), **torch_of(0, 2), **keras_of(0, 2, 2)}, MPI, (0, 2)),
        ({**jax_of(0, 1), **torch_of(1, 2)}, {}, (1, 2)),
        ({**torch_of(0, 1), **jax_of(0, 0), **keras_of(0, 1, 1)}, SLURM, (1, 4)),
        ({**torch_of(0, 0), **jax_of(0, 0), **keras_of(0, 0, 0)}, {}, (0, 1)),
        ({**torch_of(0, 0, available=False), "jax": None, "keras": SimpleNamespace()}, MPI, (5, 6)),
    ],
)
def test_a_library_that_was_initialized_for_several_processes_wins_over_the_environment(
    modules: dict[str, Any], environ: dict[str, str], place: tuple[int, int]
) -> None:
    assert find_rank(environ, libraries=find_library_ranks(modules)) == place


@pytest.mark.parametrize(
    ("modules", "environ", "says"),
    [
        (
            {**torch_of(0, 2), **jax_of(1, 2)},
            {},
            r"torch.distributed \(rank 0 of 2\) and jax.distributed \(rank 1 of 2\) disagree on which rank.*with rank=",
        ),
        (
            torch_of(0, 2),
            {**TORCH, "TORCHELASTIC_RUN_ID": "none"},
            r"torch.distributed \(rank 0 of 2\) and RANK=3, WORLD_SIZE=8 disagree",
        ),
        (
            {**jax_of(1, 2), **keras_of(0, 1, 2)},
            {},
            r"jax.distributed \(rank 1 of 2\) and keras.distribution \(rank 0 of 1\) disagree",
        ),
    ],
)
def test_libraries_that_disagree_with_each_other_or_with_torchrun_are_refused(
    modules: dict[str, Any], environ: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        find_rank(environ, libraries=find_library_ranks(modules))


def test_a_given_world_must_match_the_librarys() -> None:
    with pytest.raises(ConfigError, match=r"world of 2 \(torch.distributed \(rank 1 of 2\)\)"):
        find_rank({}, world=4, libraries=find_library_ranks(torch_of(1, 2)))
