"""Who may import whom, and what no file may do: read from the source, so nothing has to be imported to find out."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(
    path.relative_to(ROOT).as_posix() for folder in ("ablations", "analysis") for path in (ROOT / folder).rglob("*.py")
)


@functools.cache
def nodes(name: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / name).read_text(), name)))


@functools.cache
def imported(name: str) -> set[str]:
    """Every module that a file names in an import, inside functions too; `from a import b` counts as a and as a.b."""
    found = set()
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} line {node.lineno}: a relative import; name the module in full"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(name: str) -> set[str]:
    """Top-level packages outside the standard library."""
    return {module.partition(".")[0] for module in imported(name)} - set(sys.stdlib_module_names)


def ours(name: str) -> set[str]:
    """Modules of this project, as dotted names of files."""
    files = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in NAMES}
    return imported(name) & files - {"ablations", "analysis"}


def importers(package: str) -> set[str]:
    return {name for name in NAMES if package in packages(name)}


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name of what is called, call) for every call in a file."""
    for node in nodes(name):
        if isinstance(node, ast.Call):
            yield _dotted(node.func), node


def _dotted(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_the_files_are_found():
    assert {"ablations/grpo.py", "ablations/knobs/scale.py", "analysis/claims.py"} <= set(NAMES)
    assert "ablations.knobs.call" in ours("ablations/grpo.py") and "torch" in packages("ablations/grpo.py")


def test_a_knob_knows_torch_and_other_knobs_only():
    for name in (name for name in NAMES if name.startswith("ablations/knobs/")):
        assert packages(name) <= {"torch", "ablations"}, name
        assert all(module.startswith("ablations.knobs") for module in ours(name)), name


def test_the_algorithm_knows_torch_knobs_measures_and_state_only():
    assert packages("ablations/grpo.py") == {"torch", "ablations"}
    allowed = ("ablations.knobs", "ablations.measure", "ablations.state")
    assert all(module.startswith(allowed) for module in ours("ablations/grpo.py"))


def test_nothing_in_the_algorithm_branches_on_the_name_of_an_option():
    for node in nodes("ablations/grpo.py"):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                assert not (isinstance(side, ast.Constant) and isinstance(side.value, str)), f"line {node.lineno}"


def test_transformers_is_imported_by_the_policies_alone():
    """But for the benchmark, whose peer is a trainer of transformers' make."""
    assert all(name.startswith(("ablations/policy/", "analysis/bench/")) for name in importers("transformers"))


def test_mlflow_is_imported_by_the_mirror_and_by_the_reader_of_servers_alone():
    """The analysis reads a SQLite store without it; a server has to be asked through its client."""
    assert importers("mlflow") == {"ablations/client.py", "ablations/tracking.py", "analysis/server.py"}
    for name in importers("mlflow"):
        at_import = [node for node in ast.parse((ROOT / name).read_text()).body if hasattr(node, "names")]
        assert not any("mlflow" in ast.dump(node) for node in at_import)


def test_the_analysis_knows_nothing_of_the_training():
    """The stored results are the contract. The other way, reports are written when a crossing or a search ends."""
    assert all(name.startswith("analysis/bench/") for name in importers("ablations") if name.startswith("analysis/"))
    benched = {name for name in NAMES if any(module.startswith("analysis.bench") for module in imported(name))}
    assert all(name.startswith("analysis/bench/") for name in benched), "nothing may need the benchmark"
    ends = {"ablations/crossing.py", "ablations/search/command.py"}
    assert {name for name in importers("analysis") if name.startswith("ablations/")} <= ends


def test_configuration_stays_at_the_edge():
    """Below the entry points there are plain arguments, and no configuration objects."""
    inner = ["analysis/", *(f"ablations/{room}/" for room in ("knobs", "tasks", "policy"))]
    inner += [f"ablations/{part}.py" for part in ("grpo", "measure", "rollout", "state", "evaluate", "inert")]
    entry = {"analysis/bench/work.py"}  # the benchmark composes the default config, as the command does
    assert not {name for name in importers("hydra") if name.startswith(tuple(inner))} - entry


def test_every_file_can_be_read_in_one_sitting():
    long = {name: lines for name in NAMES if (lines := len((ROOT / name).read_text().splitlines())) > 400}
    assert not long


# Where text is run as a program, or a pickle is read, which is the same: the reason.
RUNS_TEXT = {
    "ablations/isolation.py": "reads what its own child, forked from this code, has written to a pipe",
    "ablations/oracles/own.py": "runs the Python file that the user names for it on the command line",
}


def test_no_text_is_run_as_a_program():
    for name in set(NAMES) - set(RUNS_TEXT):
        assert not imported(name) & {"dill", "runpy", "marshal"}, name
        for called, call in calls(name):
            assert called not in ("pickle.load", "pickle.loads", "pickle.Unpickler"), f"{name} line {call.lineno}"
            assert called not in ("eval", "exec", "compile", "__import__"), f"{name} line {call.lineno}"
            if called == "torch.load":
                only = [key.value for key in call.keywords if key.arg == "weights_only"]
                assert [_value(each) for each in only] == [True], f"{name} line {call.lineno}: weights_only=True"


def _value(node: ast.expr):
    return node.value if isinstance(node, ast.Constant) else None


def test_no_failure_is_swallowed():
    """A handler of everything that returns or goes on without a look at the error turns a fault into a number."""
    for name in NAMES:
        for node in nodes(name):
            broad = isinstance(node, ast.ExceptHandler) and _dotted(node.type) in ("", "Exception", "BaseException")
            if not broad or isinstance(node.type, ast.Tuple):
                continue
            inside = [each for step in node.body for each in ast.walk(step)]
            looks = any(isinstance(each, ast.Name) and each.id == node.name for each in inside)
            loud = any(isinstance(each, ast.Raise | ast.Call) for each in inside)
            assert looks or loud, f"{name} line {node.lineno}: catch the error by name, or let it be seen"


DRAWS = {"rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "rand_like", "randn_like"}
DRAWS_IN_PLACE = {"normal_", "uniform_", "bernoulli_", "random_", "exponential_"}


def test_randomness_has_an_owner():
    """No global generator is seeded or drawn from."""
    for name in NAMES:
        for called, call in calls(name):
            module, _, function = called.rpartition(".")
            owned = any(key.arg == "generator" for key in call.keywords)
            draws = function in DRAWS_IN_PLACE or (module == "torch" and function in DRAWS)
            seeds = called in ("torch.manual_seed", "torch.random.manual_seed")
            seeds |= module == "random" and function not in ("Random", "SystemRandom")
            seeds |= module in ("np.random", "numpy.random") and function not in ("default_rng", "Generator")
            assert (owned or not draws) and not seeds, f"{name} line {call.lineno}: {called}"
