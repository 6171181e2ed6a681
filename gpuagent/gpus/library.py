"""Functions of the driver's library that the binding has loaded, for calls with bounded arrays."""

from typing import Any

import pynvml  # type: ignore[import-untyped]


def library_function(symbol: str) -> Any:
    """Return the library's function of this name.

    Raises:
        pynvml.NVMLError: the binding has no library (Uninitialized), or the library has no such function
            (FunctionNotFound).
    """
    library = pynvml.nvmlLib
    if library is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    try:
        return getattr(library, symbol)
    except AttributeError:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
