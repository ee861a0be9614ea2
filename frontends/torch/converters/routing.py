"""Slots of experts; see `frontends.torch.experts`."""

from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value


@converts("shardwright.dispatch")
def _dispatch(call: Call, tokens: Value, chosen: Value, experts: int) -> Value:
    rows, choices = chosen.type.shape
    joined = call.views.get(tokens.name, tokens)
    features = tokens.type.shape[1]
    is_grouped = joined.type.rank == 3 and joined.type.shape[2] == features
    groups = joined.type.shape[0] if is_grouped else 1
    capacity = rows // groups  # a slot for every token
    if not _are_distinct(call, chosen):  # an expert could be chosen twice: every token goes to all
        call.notes.slots[chosen.name] = None
        return call.broadcast(call.reshape(tokens, (1, *tokens.type.shape)), call.result.shape)
    grouped = call.reshape(chosen, (groups, capacity, choices))
    how = {"experts": experts, "capacity": capacity}
    slots = call.emit("expert_slots", grouped, **how)
    call.notes.slots[chosen.name] = slots
    return call.emit("dispatch", call.reshape(tokens, (groups, capacity, features)), slots, **how)


@converts("shardwright.combine")
def _combine(call: Call, slots: Value, chosen: Value, weights: Value) -> Value:
    places = call.notes.slots[chosen.name]
    if places is None:
        return _summed(call, slots, chosen, weights)
    capacity = places.type.shape[1]
    grouped = call.reshape(weights, places.type.shape)
    found = call.emit("combine", slots, places, grouped, capacity=capacity)
    return call.reshape(found, call.result.shape)


def _summed(call: Call, found: Value, chosen: Value, weights: Value) -> Value:
    """Return the sum of all experts' results, by the weights of those that a token chooses."""
    experts = found.type.shape[0]
    marks = call.emit("one_hot", chosen, depth=experts, dtype=found.type.dtype)
    column = call.reshape(weights, (*weights.type.shape, 1))
    shares = call.emit("reduce_sum", call.emit("mul", marks, column), axis=1)
    return call.emit("einsum", found, shares, equation="enf,ne->nf")


def _are_distinct(call: Call, chosen: Value) -> bool:
    """Return whether the indices of each row are those of its largest elements."""
    source = call.views.get(chosen.name, chosen)
    node = call.producer(source.name)
    if node is not None and node.operator == "cast":
        node = call.producer(node.operands[0])
    if node is None or node.operator != "top_k" or source.type.shape[-1] != chosen.type.shape[-1]:
        return False
    return node.attributes["axis"] == source.type.rank - 1
