"""Bugs to put into the compiler: each replaces a piece of one function by a wrong one."""

from dataclasses import dataclass

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bug:
    """One wrong change of one function.

    Parameters
    ----------
    what : str
        What goes wrong.
    function : str
        The function, with its module.
    edits : tuple of (str, str)
        Pieces of its source, and what is there instead.
    """

    what: str
    function: str
    edits: Edits

    @property
    def place(self) -> str:
        """The module that it is in."""
        return self.function.partition(":")[0].removeprefix("shardwright.")


def bug(what: str, function: str, *edits: tuple[str, str]) -> Bug:
    """Return a bug of a function of `shardwright`."""
    return Bug(what, f"shardwright.{function}", edits)


_CANONICALIZE = "passes.canonicalize:merged_values"
_FUSION = "passes.fuse_all_reduces"
BUGS = {
    # Canonical form
    "merge_attributes": bug(
        "nodes are merged whatever their attributes",
        _CANONICALIZE,
        ("tuple(sorted(node.attributes.items()))", "len(node.attributes)"),
    ),
    "merge_swapped": bug(
        "nodes are merged whatever the order of their operands",
        _CANONICALIZE,
        ("(node.operator, node.operands, ", "(node.operator, tuple(sorted(node.operands)), "),
    ),
    "stop_as_identity": bug(
        "`stop_gradient` is removed as if it were an identity",
        _CANONICALIZE,
        ("kind.is_identity and not kind.stops_gradient", "kind.is_identity"),
    ),
    # Partition
    "lost_update": bug(
        "an update of the model itself gets the old value",
        "passes.partition:_Partitioning.run",
        ("self._returned(new, stored)", "self._returned(name, stored)"),
    ),
    "partial_output": bug(
        "outputs are returned as they are, partial or split",
        "passes.partition:_Partitioning._returned",
        (
            "_in_layout(self.build, value, whole if layout is None else layout)",
            "value if layout is None else _in_layout(self.build, value, layout)",
        ),
    ),
    "first_result": bug(
        "every result of an operator is taken to be the first",
        "passes.partition:_Partitioning._emit_operator",
        ("self._make(result.name, value)", "self._make(result.name, split.results[0])"),
    ),
    # Mirrors
    "mirror_lost_updates": bug(
        "the updates of the model itself are forgotten",
        "passes.insert_mirrors:InsertMirrors.run",
        ("for name, new in graph.updates]", "for name, new in ()]"),
    ),
    "mirror_wrong_value": bug(
        "all readers of a scope share the mirror of the first value",
        "passes.insert_mirrors:InsertMirrors.run",
        (
            "read = [",
            "read = [at[node.operands[0]] if at[name].type == at[node.operands[0]].type else",
        ),
    ),
    "mirror_shared_dropped": bug(
        "the mirror that readers share is not made",
        "passes.insert_mirrors:_mirrored",
        ("if not axes:", "if True:"),
    ),
    # Mirrors of programs written by hand
    "manual_mirror_dropped": bug(
        "a parameter that enters differing work gets no mirror",
        "passes.mirror_shared_values:_Sharing._entering",
        (
            "if held == blocks or",
            "if held == blocks or value.name not in self.graph.producers or",
        ),
    ),
    "manual_mean": bug(
        "gradients are averaged that should be added",
        "passes.mirror_shared_values:_Sharing._entering",
        (
            'mirror = build.emit("mirror", value, name=name, **places)',
            'mirror = build.emit("own_gradient", build.emit("mirror", value, name=name, **places), '
            "axes=self.mesh.names, factor=1 / self.mesh.size)",
        ),
    ),
    "manual_own_parts": bug(
        "a parameter of which each rank has its part is taken to be equal on all",
        "passes.mirror_shared_values:_Sharing.mirrored",
        ("self.differing[parameter.name] = self.own", "pass"),
    ),
    # Differentiation
    "lost_cotangent": bug(
        "of two cotangents of a value the later replaces the first",
        "passes.differentiate:_Backward.contribute",
        ("if sum_so_far is None else", "if True else"),
    ),
    "cotangents_subtracted": bug(
        "the second cotangent of a value is subtracted",
        "passes.differentiate:_Backward.contribute",
        ('emit("add", sum_so_far', 'emit("sub", sum_so_far'),
    ),
    "loss_scale_ignored": bug(
        "the loss scale does not enter the gradients",
        "passes.differentiate:Differentiate.run",
        ("loss, self.loss_scale)", "loss, 1.0)"),
    ),
    "regathered_wrong": bug(
        "the backward pass gathers a weight of equal type instead of its own",
        "dataflow.recomputation:Recomputation._copy",
        (
            "return self._copies[self._before_mirrors(name)]",
            "kind = self.graph.values[name].type\n"
            "        return next(\n"
            "            copy for of, copy in self._copies.items()\n"
            "            if self.graph.values[of].type == kind\n"
            "        )",
        ),
    ),
    # Lowering
    "averaged": bug(
        "what an all-reduce adds up is divided by two",
        "passes.lower_redistributions:_lower",
        (
            "    return value.name",
            '    if moves and moves[0].operator == "all_reduce":\n'
            '        value = build.emit("scale", value, factor=0.5)\n'
            "    return value.name",
        ),
    ),
    "lowered_once": bug(
        "tensors of one type that go the same way share one redistribution",
        "passes.lower_redistributions:LowerRedistributions.run",
        ("names: dict[str, str] = {}", "names, shared = {}, {}"),
        (
            "names[node.name] = _lower(build, node, replace(source, name=read), paths)",
            "names[node.name] = shared.setdefault((source.type, source.layout, "
            "node.results[0].layout), _lower(build, node, replace(source, name=read), paths))",
        ),
    ),
    "maximum_as_sum": bug(
        "partial maxima are added up",
        "passes.lower_redistributions:_lower",
        ('if source.layout.reduction != "sum" and', "if False and"),
    ),
    "wrong_dimension": bug(
        "all-to-all joins the dimension that it should split",
        "cost_model.redistribution.moves:_exchanges",
        (
            '("split_dimension", other), ("concat_dimension", dimension)',
            '("split_dimension", dimension), ("concat_dimension", other)',
        ),
    ),
    # Optimizer
    "scale_left_in": bug(
        "the loss scale is not divided out",
        "passes.append_optimizer:AppendOptimizer._unscaled",
        ("self.loss_scale != 1.0:", "self.loss_scale == 0.0:"),
    ),
    "rotated_states": bug(
        "the states of an optimizer are stored in each other's place",
        "passes.append_optimizer:_append_update",
        ("updated = (parameter, *states)", "updated = (parameter, *reversed(states))"),
    ),
    "lost_state": bug(
        "states of the optimizer are never updated",
        "passes.append_optimizer:_append_update",
        ("zip(updated, results, strict=True)", "zip(updated[:1], results[:1], strict=True)"),
    ),
    "settings_ignored": bug(
        "settings of the optimizer are those by default",
        "operators.models.update_steps:emit_update",
        ("**attributes,", ""),
    ),
    # Clean-up
    "scales_removed": bug(
        "scales are removed with the mirrors",
        "passes.clean_up:CleanUp.run",
        ('in ("mirror", "own_gradient")', 'in ("mirror", "own_gradient", "scale")'),
    ),
    "mirrors_merged": bug(
        "readers of any mirror read the value of the first one of its type",
        "passes.clean_up:CleanUp.run",
        (
            "names = {node.name: node.operands[0] for node in mirrors}",
            "names = {node.name: next(m for m in mirrors if m.results[0].type "
            "== node.results[0].type).operands[0] for node in mirrors}",
        ),
    ),
    "updates_dead": bug(
        "what only updates read is removed as dead",
        "ir.reachability:without_dead_nodes",
        ("graph.kept()", "graph.outputs"),
    ),
    # Fusion of all-reduces
    "bucket_order": bug(
        "gradients leave the bucket in another order than they entered",
        f"{_FUSION}:_fused",
        ("for member in members)\n    packed", "for member in reversed(members))\n    packed"),
    ),
    "bucket_twice": bug(
        "the first gradient of a type enters the bucket in the place of others of that type",
        "passes.fuse_all_reduces:_fused",
        (
            "graph.values[member.operands[0]] for member in members]",
            "next(graph.values[m.operands[0]] for m in members "
            "if m.results[0].type == member.results[0].type) for member in members]",
        ),
    ),
    "bucket_axes": bug(
        "all-reduces over different axes are fused",
        f"{_FUSION}:_groups",
        (
            "groups.setdefault((fusion, operand.type.dtype, partial, attributes), [])",
            "groups.setdefault((fusion, operand.type.dtype), [])",
        ),
    ),
    # What each rank holds
    "slice_order": bug(
        "a dimension that two axes split is dealt out minor to major",
        "ir.layout:Layout.slices",
        ("mesh.part(n, axes, rank)", "mesh.part(n, axes[::-1], rank)"),
    ),
    "first_slice": bug(
        "every rank gets the slice of the first rank",
        "runtime.state:fill_regions",
        (
            "key = tuple((s.start, s.stop) for s in wanted)",
            "key = tuple((0, s.stop - s.start) for s in wanted)",
        ),
    ),
    "local_numbers": bug(
        "initial values are drawn by the index within the slice",
        "runtime.state:_drawn",
        (
            "tensor.shape, part, dtype)",
            "tensor.shape, tuple(slice(0, s.stop - s.start) for s in part), dtype)",
        ),
    ),
    # Storage of parameters
    "storage_axes": bug(
        "a parameter is stored split by an axis that splits it already",
        "search.space.storage:_refinements",
        ("if a.size > 1 and a.name not in layout.split_axes", "if a.size > 1"),
    ),
    "storage_costs": bug(
        "the update of a parameter costs nothing where it is stored split",
        "search.space.storage:storage_costs",
        (
            "layout=layout), dtype)",
            "layout=layout), dtype) * (not layout.split_axes)",
        ),
    ),
    "storage_kept": bug(
        "parameters that are regathered are taken to be saved for backward",
        "search.space.storage:storage_bytes",
        ("again = np.array([option.regathered for", "again = np.array([False for"),
    ),
}

# A case that each bug breaks, for the short run; `storage_kept` makes no program wrong.
_BROKEN = {
    "twins": ("merge_attributes", "merge_swapped", "first_result", "averaged"),
    "stopped": ("stop_as_identity", "mirror_wrong_value", "scales_removed", "first_slice"),
    "normalized": ("lost_update", "mirror_lost_updates", "lost_cotangent", "updates_dead"),
    "greatest": ("cotangents_subtracted", "lowered_once", "maximum_as_sum", "wrong_dimension"),
    "greatest_sharded": ("mirror_shared_dropped", "mirrors_merged", "slice_order"),
    "columns": ("local_numbers",),
    "summed": ("partial_output", "storage_axes"),
    "pinned": ("bucket_axes", "storage_costs"),
    "mlp_adam": ("loss_scale_ignored", "scale_left_in", "bucket_order", "bucket_twice"),
    "mlp_sharded": ("rotated_states", "lost_state", "settings_ignored"),
    "gpt_sharded": ("regathered_wrong",),
    "batch_by_hand": ("manual_mirror_dropped", "manual_mean"),
    "split_by_hand": ("manual_own_parts",),
}
BREAKS = {name: case for case, names in _BROKEN.items() for name in names}

# Tests by what they test: files in which a bug is looked for, the likeliest first.
_PASS = ("tests/passes/test_golden.py", "tests/search/test_driver.py", "tests/tools/test_verify.py")
_RANKS = ("tests/ir", "tests/runtime", "tests/tools/test_verify.py")
_SEARCH = ("tests/search/test_space_memory.py", "tests/search/test_driver.py")
TESTS = {
    "passes.mirror_shared_values": ("tests/passes/test_golden.py", "tests/tools/test_verify.py"),
    "cost_model.redistribution.moves": (*_PASS, "tests/cost_model"),
    "ir.layout": _RANKS,
    "runtime.state": _RANKS,
    "search.space.storage": _SEARCH,
}


def tests(place: str) -> tuple[str, ...]:
    """Return the test files for a module."""
    return TESTS.get(place, _PASS)
