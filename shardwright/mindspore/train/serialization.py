"""Checkpoints of networks, in MindSpore's form; numpy archives are read too."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from shardwright import train
from shardwright.ir.values import wrong_value
from shardwright.mindspore.common.group_info import restore_group_info_list
from shardwright.nn.cell import Cell
from shardwright.train import load_checkpoint, load_param_into_net


def save_checkpoint(
    save_obj: Cell | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ckpt_file_name: str | Path,
    integrated_save: bool = True,
    async_save: bool = False,
    append_dict: Mapping[str, Any] | None = None,
    enc_key: None = None,
    enc_mode: str = "AES-GCM",
    choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False,
    format: str = "ckpt",
) -> None:
    """Write parameters to a file that MindSpore reads; see `shardwright.train.save_checkpoint`.

    Parameters
    ----------
    save_obj, ckpt_file_name, integrated_save, async_save, append_dict, choice_func
        As there.
    enc_key : None
        Must be left out: files are not encrypted.
    enc_mode : str
        Has no effect without a key.
    crc_check : bool
        Must be False.
    format : str
        ``ckpt``, MindSpore's messages, or ``npz``, numpy's archive.

    Raises
    ------
    OptionError
        If an argument has a value that is not allowed.
    """
    if enc_key is not None:
        raise wrong_value("enc_key", enc_key, "none", "files are not encrypted")
    if crc_check is not False:
        raise wrong_value("crc_check", crc_check, "False")
    train.save_checkpoint(
        save_obj, ckpt_file_name, integrated_save, async_save, append_dict, choice_func, format
    )


class ModelCheckpoint(train.ModelCheckpoint):
    """Writes checkpoints in training, in MindSpore's form; see `shardwright.train`."""

    format: ClassVar[str] = "ckpt"


__all__ = [
    "ModelCheckpoint",
    "load_checkpoint",
    "load_param_into_net",
    "restore_group_info_list",
    "save_checkpoint",
]
