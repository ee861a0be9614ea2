"""What MindSpore's tests call before a compilation."""


def _reset_op_id() -> None:
    """Do nothing: the names of operators are those of a program, from 0 in each."""
