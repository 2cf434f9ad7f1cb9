"""CUDA C++ kernels, compiled at run time by NVRTC; the same functions as `kernels.reference`, for CUDA tensors."""

from hisparse_svc.kernels.cuda.launch import append, backup, backup_pages, gather, resolve

__all__ = ["append", "backup", "backup_pages", "gather", "resolve"]
