"""Element types."""

float64 = "float64"
float32 = "float32"
float16 = "float16"
bfloat16 = "bfloat16"
int64 = "int64"
int32 = "int32"
int8 = "int8"
uint8 = "uint8"
bool_ = "bool"

__all__ = ["bfloat16", "bool_", "float16", "float32", "float64", "int8", "int32", "int64", "uint8"]
