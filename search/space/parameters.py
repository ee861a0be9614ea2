"""Parameters of a search space: how they are stored, gathered, updated, and held in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import EdgeLayout
from shardwright.ir.graph import DIVIDED, Value, value_bytes
from shardwright.ir.layout import Layout
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.update_steps import state_values
from shardwright.search.space.casts import pinned_storages
from shardwright.search.space.context import BuildContext
from shardwright.search.space.distinct import DistinctLayouts
from shardwright.search.space.draft import EdgeEnd, saving_ends, sharing_states
from shardwright.search.space.edges import connect, reader_conversions
from shardwright.search.space.gradients import GradientTypes
from shardwright.search.space.saved.tensors import SavedTensors
from shardwright.search.space.sharding import UNDIVIDED, OptimizerSharding
from shardwright.search.space.shared_layouts import add_shared_layout
from shardwright.search.space.space import Choice, Storage
from shardwright.search.space.storage import (
    StorageBytes,
    gradient_bytes,
    storage_bytes,
    storage_costs,
    storage_edges,
    storage_options,
    stored_layouts,
)

Floats = NDArray[np.float64]


class ParameterChoices:
    """Adds the parameters of a program to a search space.

    Parameters
    ----------
    context : BuildContext
        The space.
    saved : SavedTensors
        Counts what is saved for backward.
    optimizer : Optimizer, optional
        The rule of every parameter; None where none is updated.
    sharding : OptimizerSharding, optional
        How finely parameters must be divided.
    pins : sequence of (mapping of str to split counts)
        Pins of the user, by operator; those on the cast of a parameter pin its storage.
    """

    def __init__(
        self,
        context: BuildContext,
        saved: SavedTensors,
        optimizer: Optimizer | None,
        sharding: OptimizerSharding | None,
        pins: Sequence[Mapping[str, SplitCounts]] = (),
    ) -> None:
        self.context, self.saved, self.pins = context, saved, pins
        self.optimizer, self.sharding = optimizer, sharding
        self._undivided = {
            p.name for p in context.graph.parameters if not p.attributes.get(DIVIDED, True)
        }

    def add(self, parameter: Value, updated: str | None) -> None:
        """Add a parameter; `updated` is the value that the model itself writes to it.

        What operators read of a parameter that is cast is the copy: it is gathered, saved for
        backward or regathered, and the gradient has its type.
        """
        context, trained = self.context, self.context.has_gradient(parameter.name)
        value = context.copied(parameter)
        reader = self._reader(value)
        types, key = context.gradient_types(value.name), self._key(parameter, value, reader)
        options, cost = context.intern(
            ("parameter", key), lambda: self._storage(parameter, value, trained, reader)
        )
        variable = context.draft.add(Choice("parameter", parameter.name, options), cost)
        self._pin_cast(variable, parameter.name, options)
        sizes = context.intern(
            ("bytes", key),
            lambda: storage_bytes(value.type, options, context.mesh, self._passes(reader)),
        )
        master = sizes
        if value is not parameter:
            master = context.intern(
                ("master bytes", key), lambda: storage_bytes(parameter.type, options, context.mesh)
            )
        counted = context.is_counted(parameter.name, value.name)
        if counted:
            self._hold_persistent(parameter, trained, variable, options, master, key)
        if reader is not None and counted:
            self._hold(value, variable, sizes, reader)
        if reader is not None and trained and counted:
            gradients = context.intern(
                ("gradient bytes", key),
                lambda: gradient_bytes(types, options, context.mesh, self._passes(reader)),
            )
            self._hold_gradient(types, variable, gradients, reader, context.readers[value.name])
        layouts = context.intern(
            ("edge layouts", key),
            lambda: tuple(EdgeLayout(o.layout, o.layout if trained else None) for o in options),
        )
        if updated is not None:  # the model's own update is redistributed to the stored layout
            targets = tuple(EdgeLayout(option.layout, None) for option in options)
            end = EdgeEnd(variable, ("update", key), targets, context.memory.operators)
            context.readers[updated].append(end)
        if reader is None:
            self._connect_all(value, EdgeEnd(variable, key, layouts, 0))
            return
        table = context.intern(
            ("stored", key), lambda: self._stored(value, options, trained, reader)
        )
        writer = EdgeEnd(variable, key, layouts, 0)
        context.draft.connect(
            writer, reader, value.type, table, of_parameters=True, gradient=types.reduced
        )

    def _key(self, parameter: Value, value: Value, reader: EdgeEnd | None) -> int:
        """Return the number that equal parameters share, with the copy that operators read."""
        context, name = self.context, parameter.name
        reads = reader and (reader.key, self._passes(reader))
        updated = None if self.optimizer is None else self.optimizer.priced_by(name)
        types = parameter.type, context.number_of_types(value.name)
        asked = context.has_gradient(name), name in self._undivided
        return context.number(("parameter", types, asked, updated, reads))

    def _passes(self, reader: EdgeEnd | None) -> float:
        """Return how often the one reader of a parameter runs in a step over micro-batches."""
        return 1 if reader is None else reader.passes

    def _connect_all(self, value: Value, writer: EdgeEnd) -> None:
        """Connect a parameter with every reader by itself."""
        agree = self.context.profile.rules.parameters_agree and self._can_agree(value)
        writer.key, writer.fixes_consumers = (writer.key, agree), agree
        for reader in self.context.readers[value.name]:
            connect(self.context, value, writer, reader)

    def _can_agree(self, value: Value) -> bool:
        """Return whether all readers of a parameter can use one layout, with their pins."""
        kept = self.context.kept
        layouts = [
            {
                reader.layouts[i].layout
                for i in kept.get(reader.variable, range(len(reader.layouts)))
            }
            for reader in self.context.readers[value.name]
        ]
        return bool(layouts) and bool(set.intersection(*layouts))

    # Readers

    def _reader(self, value: Value) -> EdgeEnd | None:
        """Return the one reader of a parameter, or the shared layout of several; else None."""
        readers = self.context.readers[value.name]
        if len(readers) == 1:
            return readers[0]
        if not readers or not self.context.profile.rules.share_layouts:
            return None
        return self._shared_layout(value, readers)

    def _shared_layout(self, value: Value, readers: Sequence[EdgeEnd]) -> EdgeEnd:
        context, savers = self.context, saving_ends(readers)
        wanted = context.has_gradient(value.name)
        key = context.number(("anywhere", value.type, wanted))
        anywhere = context.intern(
            ("anywhere", key),
            lambda: tuple(
                EdgeLayout(layout, layout if wanted else None)
                for layout in context.all_layouts(value.type)
            ),
        )
        origin = EdgeEnd(-1, key, anywhere, 0)
        shared = add_shared_layout(context, value, origin, readers, savers, saved=bool(savers))
        for reader in readers:
            connect(context, value, shared, reader, savers)
        shareable = np.ones(len(shared.layouts), dtype=bool)
        if value.name in context.joined:
            states = sharing_states(context.draft, shared)
            self.saved.hold(value, savers, shared, shared, states or list(shareable))
            return shared
        for reader in savers:
            self.saved.add_copy(value, reader, shared, shareable)
        return shared

    # Storage

    def _pin_cast(self, variable: int, parameter: str, options: Sequence[Storage]) -> None:
        """Keep the options that match the pins on the cast of a parameter."""
        context = self.context
        cast = context.casts.get(parameter)
        if cast is None:
            return
        pins = [pinned[cast.name] for pinned in self.pins if cast.name in pinned]
        if pins:
            counts = [(option.layout.counts(context.mesh),) for option in options]
            context.kept[variable] = pinned_storages(cast, counts, pins)

    def _storage(
        self, parameter: Value, value: Value, trained: bool, reader: EdgeEnd | None
    ) -> tuple[tuple[Storage, ...], Floats]:
        context = self.context
        used = tuple(dict.fromkeys(context.representatives(reader))) if reader else ()
        only = len(context.readers[value.name]) == 1
        options = storage_options(
            value.type,
            used,
            only and reader is not None and reader.saved is not None,
            context.profile,
            context.all_layouts(value.type),
            sharding=UNDIVIDED if parameter.name in self._undivided else self.sharding,
            passes=self._passes(reader),
        )
        return options, storage_costs(
            parameter,
            context.gradient_types(value.name),
            options,
            trained,
            context.profile,
        )

    def _stored(
        self,
        value: Value,
        options: Sequence[Storage],
        trained: bool,
        reader: EdgeEnd,
    ) -> Floats:
        """Price a parameter between its storage and its reader.

        A parameter gathered for several readers has the layout of the first that saves it.
        """
        self.context.check_tables(len(options), len(reader.layouts))
        used = self.context.representatives(reader)
        profile = self.context.prices_of(value.name)
        passes = self._passes(reader)
        types = self.context.gradient_types(value.name)
        table = storage_edges(types, options, trained, reader.layouts, used, profile, passes)
        if types.is_converted:
            prices = profile.in_step(reader.gradient_passes, of_parameters=True)
            table = table + reader_conversions(prices, types, reader)[None, :]
        if reader.gradient_passes > passes and reader.has_cotangent:
            cotangents = DistinctLayouts([edge.cotangent or edge.layout for edge in reader.layouts])
            times = reader.gradient_passes
            sums = cotangents.each(
                lambda layout: types.accumulation(profile, layout, times, of_parameters=True)
            )
            table = table + sums[None, :]
        states = sharing_states(self.context.draft, reader)
        if states:
            gathered = np.array([option.layout != option.used for option in options])
            table = np.where(gathered[:, None] & ~np.array(states), np.inf, table)
        return table

    # Memory

    def _hold_persistent(
        self,
        parameter: Value,
        trained: bool,
        variable: int,
        options: Sequence[Storage],
        sizes: StorageBytes,
        key: int,
    ) -> None:
        """Count a parameter and the optimizer's states; equal parameters have one key."""
        memory, mesh = self.context.memory, self.context.mesh

        def bytes_of_states(layout: Layout) -> float:
            assert self.optimizer is not None
            stored = replace(parameter, layout=layout)
            states = state_values(self.optimizer, stored, mesh)
            return sum(value_bytes(value, mesh) for _, value in states)

        def make() -> Floats:
            if self.optimizer is None or not trained:
                return sizes.stored
            return sizes.stored + stored_layouts(options).each(bytes_of_states)

        persistent = self.context.intern(("persistent", key), make)
        memory.hold(variable, persistent, 0, memory.end + 1)

    def _hold(self, value: Value, variable: int, sizes: StorageBytes, reader: EdgeEnd) -> None:
        """Count the copies of a parameter, cast and gathered."""
        if value.name in self.context.joined:
            self._hold_cast(value, variable, sizes, reader)
        else:
            self._hold_gathered(value, variable, sizes, reader)

    def _hold_cast(self, value: Value, variable: int, sizes: StorageBytes, reader: EdgeEnd) -> None:
        """Count the copy in lower precision: gathered where that is saved, else as it is stored.

        Of several readers, those that save it count it (`_shared_layout`).
        """
        if len(self.context.readers[value.name]) != 1:
            return
        if reader.passes > 1:  # cast before the first pass
            memory = self.context.memory
            kept = np.where(sizes.lasting > 0, sizes.lasting, sizes.stored)
            memory.hold(variable, kept, 0, memory.end)
            if reader.saved is not None:
                backward = memory.backward(reader.moment)
                memory.hold_saved(variable, sizes.gathered, reader.moment, backward)
        elif reader.saved is not None and self.context.micro is None:
            memory = self.context.memory
            memory.hold(variable, sizes.cast, reader.moment, memory.backward(reader.moment))

    def _hold_gathered(
        self, value: Value, variable: int, sizes: StorageBytes, reader: EdgeEnd
    ) -> None:
        memory, readers = self.context.memory, self.context.readers[value.name]
        if self.context.micro is not None:
            self._hold_for_passes(variable, sizes, reader, readers)
        elif len(readers) > 1:  # gathered at the beginning of the program
            savers = saving_ends(readers)
            last = max(end.moment for end in readers)
            freed = memory.backward(savers[0].moment) if savers else last
            memory.hold(variable, sizes.gathered, 0, freed)
        elif reader.saved is not None:
            backward = memory.backward(reader.moment)
            memory.hold(variable, sizes.gathered, reader.moment, backward)

    def _hold_for_passes(
        self, variable: int, sizes: StorageBytes, reader: EdgeEnd, readers: Sequence[EdgeEnd]
    ) -> None:
        """Count a copy that is gathered before the first pass, or in each for its backward."""
        memory = self.context.memory
        if len(readers) > 1:
            if any(end.passes > 1 for end in readers):
                memory.hold(variable, sizes.gathered, 0, memory.end)
        elif reader.passes > 1:
            memory.hold(variable, sizes.lasting, 0, memory.end)
            if reader.saved is not None:
                backward = memory.backward(reader.moment)
                memory.hold_saved(variable, sizes.gathered, reader.moment, backward)

    def _hold_gradient(
        self,
        types: GradientTypes,
        variable: int,
        sizes: StorageBytes,
        reader: EdgeEnd,
        readers: Sequence[EdgeEnd],
    ) -> None:
        """Count the gradient of a parameter."""
        memory = self.context.memory
        if reader.gradient_passes > 1:  # the passes add it up
            shared = len(readers) > 1
            at, usage = variable, sizes.accumulated
            if shared:
                at, usage = reader.variable, self.context.bytes_at(types.accumulated, reader)
            memory.hold(at, usage, 0, memory.end)
            memory.hold(variable, sizes.stored, memory.end, memory.end + 1)
            return
        start = self.context.gradient_start(readers)
        if start is None:
            return
        if self.context.micro is not None:
            memory.hold(variable, sizes.stored, memory.end, memory.end + 1)
        elif len(readers) > 1:
            usage = self.context.bytes_at(types.reduced, reader)
            memory.hold_gradient(reader.variable, usage, start, memory.end)
            memory.hold(variable, sizes.stored, memory.end, memory.end + 1)
        else:
            memory.hold_gradient(variable, sizes.stored, start, memory.end + 1)
