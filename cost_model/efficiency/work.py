"""The work of an operator on a rank, by class and shape, and the seconds that it takes.

Work depends on the program alone, rates on the device and the training software, so a program is
timed again under other rates without its operators.

=============== ==================================================================================
class           seconds
=============== ==================================================================================
product         flops / (peak * matmul * waves * depth), at least bytes / bandwidth; then the
                traffic of what an operator of several products makes between them
grouped product flops / (peak * matmul * sides), at least bytes / bandwidth
convolution     flops / (peak * convolution), at least bytes / bandwidth
attention       flops / (peak * attention), at least bytes / bandwidth; or, where the software keeps
                the scores in memory, its products as above, and the traffic of all scores
pointwise, copy bytes * the factor of the software / bandwidth
update          the same
bias            the same, of experts, and of its gradient; nothing where the software has them
                inside the products
any             launch + flops or bytes / rate + bytes / traffic, where the cluster file has the
                operator's own rate
=============== ==================================================================================

Where kernels of the device were measured (`kernels.Kernels`), their curves take the place of
matmul * depth and of matmul * sides, of attention, and of the bandwidth of copies and updates.

The bandwidth is the achievable one, and every operator takes the device's launch seconds too. A
product of m x n x k is computed in tiles that are dealt out over the multiprocessors in waves, the
last of which may be partly used; a short k does not fill the pipeline of a tile: k / (k + depth).
The tiles of the products of experts are dealt out together, and every short side costs as k does:
sides = m n k / ((m + depth)(n + depth)(k + depth)). With the figures of H100 that is within 8 % in
the mean of 51 measured products of 64 to 4,096 rows; loads of experts that differ cost 2 to 20 %
more, which is not counted.
The steps of a recurrent layer follow each other, so the tiles of each fill waves by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod
from typing import Literal

from shardwright.cost_model.cluster import Cluster, Device
from shardwright.cost_model.efficiency.attained import ALIGNED, DeviceEfficiency
from shardwright.cost_model.efficiency.figures import Figure
from shardwright.cost_model.efficiency.kernels import Size
from shardwright.cost_model.efficiency.software import Software
from shardwright.operators.attention.scaled_dot_product import Attention
from shardwright.operators.elementwise.arithmetic import Add
from shardwright.operators.elementwise.conversion import Cast, Convert
from shardwright.operators.indexing.shape import Transpose
from shardwright.operators.indexing.slicing import Concat, Slice, Split, Stack
from shardwright.operators.info import OperatorInfo
from shardwright.operators.linear.head_loss import OverChunks
from shardwright.operators.linear.matmul import ContractLeading, MatMul
from shardwright.operators.models.optimizer import Update
from shardwright.operators.models.routing import Grouped, GroupedOuter
from shardwright.operators.recurrent.layers import OverSteps
from shardwright.operators.reduction.reduce import ReduceSum
from shardwright.operators.windows.convolution import ConvolutionFamily

Kind = Literal[
    "product",
    "attention",
    "convolution",
    "pointwise",
    "copy",
    "update",
    "bias",
    "bias_gradient",
]
_COPIES = (Cast, Convert, Transpose, Slice, Split, Concat, Stack)
_TILE = 128  # rows and columns of a tile of a product, where the device says no other
_BACKWARD_SCORES = 1.5  # traffic of the scores in the gradient, over that of the forward pass


@dataclass(frozen=True)
class Product:
    """Matrix products of one shape.

    Parameters
    ----------
    m, n, k : float
        Rows and columns of the result, and the contracted length.
    count : float
        How many of them.
    steps : float
        How often so many, one after another: the steps of a recurrent layer.
    experts : str
        Of products of experts, each with its own number of rows, whether the rows are multiplied by
        ``matrices`` or by other ``rows``; else empty.
    """

    m: float
    n: float
    k: float
    count: float = 1.0
    steps: float = 1.0
    experts: Literal["", "matrices", "rows"] = ""

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return 2.0 * self.m * self.n * self.k * self.count * self.steps

    @property
    def elements(self) -> float:
        """Elements of operands and results."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.count


@dataclass(frozen=True)
class Work:
    """The work of one operator on one rank.

    Parameters
    ----------
    kind : str
        Its class.
    dtype : str
        The element type that it computes in.
    flops, nbytes : float
        Floating-point operations, and bytes read and written.
    products : tuple of Product
        Its matrix products; those of attention by themselves where scores are kept in memory, of
        which the first gives scores.
    scores : float
        Scores of attention in memory, by the times that they are read and written.
    item_bytes : float
        Bytes of an element of its products; 0 of those by a recipe, whose operands and results
        differ.
    operator : str
        The name of the operator.
    copied : float
        Bytes of the windows that a convolution copies.
    between : float
        Bytes that an operator of several products reads and writes between them.
    launches : int
        Kernels that it launches, one after another.
    clamped : float
        Bytes of the rows of experts that it clamps, or whose gradients it cuts off.
    alignment : int
        Of products of 16-bit numbers, the greatest of 1, 2, 4, 8 that divides the last dimension of
        every tensor; else 8.
    recipe : str
        Of products by a recipe of low precision, its name.
    casts : tuple of (str, float, float)
        Of those, the bytes in the place of `between` and the kernels beside the product's own, by
        how software makes copies, `Software.casts`.
    """

    kind: Kind
    dtype: str
    flops: float
    nbytes: float
    products: tuple[Product, ...] = ()
    scores: float = 0.0
    item_bytes: float = 0.0
    operator: str = ""
    copied: float = 0.0
    between: float = 0.0
    launches: int = 1
    clamped: float = 0.0
    alignment: int = ALIGNED
    recipe: str = ""
    casts: tuple[tuple[str, float, float], ...] = ()

    @property
    def amount(self) -> float:
        """What a rate of its operator counts: flops, or bytes that it reads and writes."""
        return self.flops if self.counts_flops else self.nbytes

    @property
    def counts_flops(self) -> bool:
        """Whether its rate counts flops."""
        return self.kind in ("product", "attention", "convolution")

    @property
    def traffic(self) -> float:
        """Bytes that it moves besides its flops; 0 where the rate counts bytes."""
        if not self.counts_flops:
            return 0.0
        return self.nbytes + self.copied + self.between + self.scores * self.item_bytes


def alignment_of(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the greatest of 1, 2, 4, 8 that divides the last dimension of every shape."""
    return gcd(ALIGNED, *(shape[-1] for shape in shapes if shape))


def kind_of(info: OperatorInfo) -> Kind:
    """Return the class of an operator that computes."""
    if isinstance(info, Attention):
        return "attention"
    if isinstance(info, ConvolutionFamily):
        return "convolution"
    if info.product_flops or isinstance(info, ContractLeading):
        return "product"
    if isinstance(info, Update):
        return "update"
    if is_bias_of_rows(info):
        return "bias"
    if is_bias_gradient(info):
        return "bias_gradient"
    return "copy" if isinstance(info, _COPIES) else "pointwise"


def is_bias_of_rows(info: OperatorInfo) -> bool:
    """Return whether an operator adds to the rows of each expert what all of them share."""
    is_of_rows = [tensor.ragged is not None for tensor in info.operand_types]
    return isinstance(info, Add) and any(is_of_rows) and not all(is_of_rows)


def is_bias_gradient(info: OperatorInfo) -> bool:
    """Return whether an operator adds up the rows of each expert."""
    is_of_rows = [tensor.ragged is not None for tensor in (*info.operand_types, *info.result_types)]
    return isinstance(info, ReduceSum) and is_of_rows == [True, False]


def products_of(
    info: OperatorInfo, flops: float, shapes: Sequence[tuple[int, ...]]
) -> tuple[Product, ...]:
    """Return the matrix products of an operator on a rank.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    flops : float
        Its operations on the rank.
    shapes : sequence of tuple of int
        The shapes of its slices: of the operands, then of the results.
    """
    if isinstance(info, Attention):
        return _attention_products(info, shapes)
    if isinstance(info, OverSteps):
        return _recurrent_products(info, shapes)
    if isinstance(info, Grouped):
        return _grouped_products(info, flops, shapes)
    if isinstance(info, OverChunks):
        return _head_products(info, shapes)
    result = shapes[len(info.operand_types)]
    size = max(prod(result), 1)
    k = flops / (2.0 * size)
    if isinstance(info, MatMul) and len(shapes[1]) > 2:
        m, n = result[-2:]
        return (Product(m, n, k, size / max(m * n, 1)),)
    n = result[-1] if result else 1
    return (Product(size / max(n, 1), n, k),)


def _attention_products(info: Attention, shapes: Sequence[tuple[int, ...]]) -> tuple[Product, ...]:
    batch, heads, queries, d = shapes[info.first]
    keys, e = shapes[info.first + 1][2], shapes[info.first + 2][3]
    count = batch * heads
    scores, mixed = Product(queries, keys, d, count), Product(queries, e, keys, count)
    if info.first == 0:
        return scores, mixed
    of_keys, of_values = Product(keys, d, queries, count), Product(keys, e, queries, count)
    slope, of_queries = Product(queries, keys, e, count), Product(queries, d, keys, count)
    return scores, of_values, slope, of_queries, of_keys


def _grouped_products(
    info: Grouped, flops: float, shapes: Sequence[tuple[int, ...]]
) -> tuple[Product, ...]:
    """Return a product of each expert, of as many rows as experts have in the mean."""
    (experts, *_, first), (*_, last) = shapes[0], shapes[2]
    rows = flops / (2.0 * first * last * experts)
    if isinstance(info, GroupedOuter):
        return (Product(first, last, rows, experts, experts="rows"),)
    return (Product(rows, last, first, experts, experts="matrices"),)


def _recurrent_products(info: OverSteps, shapes: Sequence[tuple[int, ...]]) -> tuple[Product, ...]:
    """Return the product of every step; of the gradient also those of all steps at once."""
    steps, samples, _ = shapes[info.begin]
    rows, columns = shapes[info.begin + 1]
    each = Product(samples, rows, columns, steps=steps)
    if not info.begin:
        return (each,)
    back = Product(samples, columns, rows, steps=steps)
    whole = Product(steps * samples, rows, columns)
    return back, whole, Product(rows, columns, steps * samples)


def _head_products(info: OverChunks, shapes: Sequence[tuple[int, ...]]) -> tuple[Product, ...]:
    """Return the product of every chunk; of the gradient also those for both of its results."""
    own = info.sizes(shapes)
    rows, columns, k, chunks = own.rows, own.vocabulary, own.features, own.chunks
    logits = Product(rows, columns, k, chunks)
    if info.passes == 1:
        return (logits,)
    return logits, Product(rows, k, columns, chunks), Product(columns, k, rows, chunks)


def scores_of(info: OperatorInfo, products: Sequence[Product]) -> float:
    """Return the scores of attention, by the times that they pass through memory."""
    if not isinstance(info, Attention):
        return 0.0
    scores = products[0]
    return scores.m * scores.n * scores.count * (_BACKWARD_SCORES if info.first else 1.0)


def work_seconds(work: Work, cluster: Cluster) -> float:
    """Return the seconds of some work on a device of a cluster, as its software runs it."""
    device, software = cluster.device, cluster.software
    if device.efficiency is not None and work.operator in device.efficiency.operators:
        own = device.efficiency.operators[work.operator]
        return own.seconds(work.amount / _aligned(work, device.efficiency), work.traffic)
    if work.kind == "attention" and software is not None and software.attention == "separate":
        moved = work.scores * software.scores.value / device.achieved_bandwidth
        return sum(_product(p, work, device) for p in work.products) + moved
    moved = work.nbytes / (device.memory_bandwidth * _memory_share(work.kind, device))
    if work.kind == "product":
        share = 1.0 if software is None else software.recipe_share(work.recipe)
        products = sum(_product_seconds(p, work, device) for p in work.products) / share
        made, launches = work.between, float(work.launches)
        way = None if software is None else software.casts
        for name, nbytes, kernels in work.casts:
            if name == way:
                made, launches = nbytes, 1 + kernels
        between = made * _factor("pointwise", software) / device.achieved_bandwidth
        return max(products, moved) + between + launches * device.launch_seconds
    if work.kind in ("attention", "convolution"):
        rate = device.flops_per_second(work.dtype) * _share(work, device, software)
        rate *= device.over_short(work.dtype)
        return max(work.flops / rate, moved) + device.launch_seconds
    factor = _factor(work.kind, software)
    if not factor:
        return 0.0
    compute = work.flops / device.flops_per_second(work.dtype)
    clamps = None if software is None else software.clamps
    apart = 0.0 if clamps is None else 2 * work.clamped * clamps.value / device.achieved_bandwidth
    return max(compute, moved) * factor + apart + device.launch_seconds


def _product(product: Product, work: Work, device: Device) -> float:
    """Return the seconds of matrix products that are launched by themselves."""
    return _product_seconds(product, work, device) + device.launch_seconds


def _product_seconds(product: Product, work: Work, device: Device) -> float:
    """Return the seconds of matrix products: tiles in waves, at least their traffic."""
    moved = product.elements * work.item_bytes / device.achieved_bandwidth
    peak, efficiency = peak_of(work.dtype, work.recipe, device), device.efficiency
    if efficiency is None:
        return max(product.flops / peak, moved)
    rate = peak * _product_share(product, work, device) * _aligned(work, efficiency)
    rate *= device.over_short(work.dtype, work.recipe)
    if efficiency.multiprocessors is not None and not product.experts:
        tile = _TILE if efficiency.tile is None else efficiency.tile.value
        tiles = ceil(product.m / tile) * ceil(product.n / tile) * product.count
        processors = efficiency.multiprocessors.value
        rate *= tiles / (ceil(tiles / processors) * processors)
    return max(product.flops / max(rate, 1e-30), moved)


def peak_of(dtype: str, recipe: str, device: Device) -> float:
    """Return the peak rate of a type, or of the products of a recipe of low precision."""
    if recipe:
        return device.recipe_flops_per_second(recipe)
    return device.flops_per_second(dtype)


def _product_share(product: Product, work: Work, device: Device) -> float:
    """Return the share of the peak that a product attains: as measured, or by its depth."""
    efficiency, kernels = device.efficiency, device.kernels
    assert efficiency is not None
    curve = None if kernels is None else kernels.of_product(work.dtype, product.experts)
    if curve is not None and kernels is not None:
        sizes: dict[Size, float] = {"m": product.m, "n": product.n, "k": product.k}
        return curve.attained(sizes) * kernels.sustained.value
    rate = efficiency.matmul.value
    if efficiency.depth is not None:
        sides = (product.m, product.n, product.k) if product.experts else (product.k,)
        rate *= prod(side / (side + efficiency.depth.value) for side in sides)
    return rate


def _aligned(work: Work, efficiency: DeviceEfficiency) -> float:
    """Return the share of its rate that a product keeps with such dimensions."""
    return 1.0 if efficiency.unaligned is None else efficiency.unaligned.share(work.alignment)


def _share(work: Work, device: Device, software: Software | None) -> float:
    """Return the share of the peak that attention or a convolution attains."""
    efficiency = device.efficiency
    if work.kind == "convolution":
        return 1.0 if efficiency is None else (efficiency.convolution or efficiency.matmul).value
    scores, whole = work.products[0], sum(product.flops for product in work.products)
    keys = scores.n * min(work.flops / whole, 1.0) if whole else scores.n
    backward = len(work.products) > 2
    return attention_share(device, software, work.dtype, backward, keys, scores.k)


def attention_share(
    device: Device,
    software: Software | None,
    dtype: str,
    backward: bool,
    keys: float,
    width: float,
) -> float:
    """Return the share of the peak that fused attention attains.

    Parameters
    ----------
    device, software
        The device, and what runs the step on it.
    dtype : str
        The type that it computes in.
    backward : bool
        Whether it is the gradient.
    keys, width : float
        The keys that a query reads in the mean, and the features of each.
    """
    kernels = device.kernels
    curve = None if kernels is None else kernels.of_attention(dtype, backward=backward)
    if curve is not None:
        return curve.attained({"keys": keys}, width)
    own = 1.0 if device.efficiency is None else device.efficiency.attention.value
    return own if software is None else own * software.attention_of(width)


def _memory_share(kind: Kind, device: Device) -> float:
    """Return the share of the memory bandwidth that a kind of operator attains."""
    if device.efficiency is None:
        return 1.0
    kernels = device.kernels
    own = {"copy": kernels.copies, "update": kernels.updates}.get(kind) if kernels else None
    return device.efficiency.memory.value if own is None else own.share


def _factor(kind: Kind, software: Software | None) -> float:
    """Return the traffic of memory-bound work over that of its operators one by one."""
    if software is None:
        return 1.0
    figures: dict[Kind, Figure | None] = {
        "pointwise": software.pointwise,
        "copy": software.copies,
        "update": software.updates,
        "bias": software.biases,
        "bias_gradient": software.bias_gradients,
    }
    found = figures[kind]
    return 0.0 if found is None else found.value
