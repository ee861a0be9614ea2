"""Operators to build networks of, named as MindSpore names them.

``ops.MatMul(transpose_b=True)`` is a primitive, which can be given a strategy with ``shard``;
``ops.matmul(a, b, transpose_b=True)`` is the same as a function. Every operator of the registry is
here under both kinds of names, next to the communication primitives.
"""

from typing import Any

from shardwright.operators.info import operator_names
from shardwright.ops.arrays import (
    Cdist,
    EmbeddingLookup,
    LinSpace,
    NanToNum,
    Range,
    RepeatElements,
    ScatterAdd,
    ScatterMax,
    ScatterMin,
    ScatterSub,
    ScatterUpdate,
    SplitTensor,
    SplitWithSize,
    StridedSlice,
    TraceV2,
    TruncateDiv,
    TruncateMod,
    Xdivy,
    Xlogy,
)
from shardwright.ops.collective import (
    AllGather,
    AllReduce,
    AlltoAll,
    AlltoAllV,
    AlltoAllVC,
    Barrier,
    Broadcast,
    CollectiveGather,
    CollectiveScatter,
    HostAllGather,
    HostReduceScatter,
    NeighborShift,
    Reduce,
    ReduceOp,
    ReduceScatter,
)
from shardwright.ops.composite import (
    Addcmul,
    AddN,
    ArgMaxWithValue,
    ArgMinWithValue,
    Assign,
    AssignAdd,
    AssignSub,
    DivMod,
    DropoutDoMask,
    Hypot,
    KLDivLoss,
    L2Loss,
    Lerp,
    MaskedFill,
    MulNoNan,
    SquareSumAll,
    Swiglu,
)
from shardwright.ops.cosine import DCT, DCTN, IDCT, IDCTN
from shardwright.ops.decoding import IncreFlashAttention, KVCacheScatterUpdate
from shardwright.ops.detection import IOU, BoundingBoxEncode, CheckValid
from shardwright.ops.eight_bits import (
    AntiQuant,
    DynamicQuantExt,
    QuantBatchMatmul,
    QuantV2,
    WeightQuantBatchMatmul,
)
from shardwright.ops.messages import Receive, Send
from shardwright.ops.names import operator_called
from shardwright.ops.neighbors import NeighborExchange, NeighborExchangeV2
from shardwright.ops.primitive import (
    Gather,
    OneHot,
    Primitive,
    primitive_class,
    primitive_function,
)
from shardwright.ops.printing import Print
from shardwright.ops.quantization import (
    FakeQuantPerChannel,
    FakeQuantPerLayer,
    MinMaxUpdatePerChannel,
    MinMaxUpdatePerLayer,
)
from shardwright.ops.sampling import CropAndResize, GridSampler2D, ROIAlign
from shardwright.ops.sharding import shard
from shardwright.ops.written import TensorScatterAdd, TensorScatterSub

__all__ = [
    "DCT",
    "DCTN",
    "IDCT",
    "IDCTN",
    "IOU",
    "AddN",
    "Addcmul",
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "AlltoAllV",
    "AlltoAllVC",
    "AntiQuant",
    "ArgMaxWithValue",
    "ArgMinWithValue",
    "Assign",
    "AssignAdd",
    "AssignSub",
    "Barrier",
    "BoundingBoxEncode",
    "Broadcast",
    "Cdist",
    "CheckValid",
    "CollectiveGather",
    "CollectiveScatter",
    "CropAndResize",
    "DivMod",
    "DropoutDoMask",
    "DynamicQuantExt",
    "EmbeddingLookup",
    "FakeQuantPerChannel",
    "FakeQuantPerLayer",
    "Gather",
    "GridSampler2D",
    "HostAllGather",
    "HostReduceScatter",
    "Hypot",
    "IncreFlashAttention",
    "KLDivLoss",
    "KVCacheScatterUpdate",
    "L2Loss",
    "Lerp",
    "LinSpace",
    "MaskedFill",
    "MinMaxUpdatePerChannel",
    "MinMaxUpdatePerLayer",
    "MulNoNan",
    "NanToNum",
    "NeighborExchange",
    "NeighborExchangeV2",
    "NeighborShift",
    "OneHot",
    "Primitive",
    "Print",
    "QuantBatchMatmul",
    "QuantV2",
    "ROIAlign",
    "Range",
    "Receive",
    "Reduce",
    "ReduceOp",
    "ReduceScatter",
    "RepeatElements",
    "ScatterAdd",
    "ScatterMax",
    "ScatterMin",
    "ScatterSub",
    "ScatterUpdate",
    "Send",
    "SplitTensor",
    "SplitWithSize",
    "SquareSumAll",
    "StridedSlice",
    "Swiglu",
    "TensorScatterAdd",
    "TensorScatterSub",
    "TraceV2",
    "TruncateDiv",
    "TruncateMod",
    "WeightQuantBatchMatmul",
    "Xdivy",
    "Xlogy",
    "shard",
]


def __getattr__(name: str) -> Any:
    operator = None if name.startswith("_") else operator_called(name)
    if operator is None:
        raise AttributeError(f"no operator is called `{name}`")
    make = primitive_class if name[0].isupper() else primitive_function
    globals()[name] = found = make(name, operator)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *operator_names()})
