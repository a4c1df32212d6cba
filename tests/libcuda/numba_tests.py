"""numba's tests of its driver that do not pass on the simulated libcuda, and why.

`numba.cuda.tests.cudadrv` of numba 0.68.1, by the last two parts of their names; all others pass.
Those of `COMPILED` need libNVVM and its libdevice, and pass where the CUDA toolkit has them.
"""

from __future__ import annotations

from typing import Final

WHY: Final = {
    "linker": "linking several inputs is not modelled: numba links a kernel with CUDA C there",
    "managed": "managed memory is not modelled",
    "profiler": "cuProfilerStart is not modelled",
    "nvvm": "numba asks for compute_50, which libNVVM of CUDA 13 does not know, if it is there",
    "process": "the test runs a process of its own, in which the library is not initialised",
    "registers": "registers of PTX are a guess of 32: the test wants more than 57",
}
MISSED: Final[dict[str, str]] = {
    "TestCudaMemory.test_managed_memory": "managed",
    "TestDel.test_managed_memory": "managed",
    "TestLinker.test_linking_cu": "linker",
    "TestLinker.test_linking_cu_cuda_include": "linker",
    "TestLinker.test_linking_cu_error": "linker",
    "TestLinker.test_linking_cu_log_warning": "linker",
    "TestLinker.test_linking_eager_compile": "linker",
    "TestLinker.test_linking_lazy_compile": "linker",
    "TestLinker.test_set_registers_no_max": "registers",
    "TestManagedAlloc.test_managed_alloc_driver_host_attach": "managed",
    "TestManagedAlloc.test_managed_alloc_driver_undersubscribe": "managed",
    "TestManagedAlloc.test_managed_array_attach_global": "managed",
    "TestManagedAlloc.test_managed_array_attach_host": "managed",
    "TestNvvmDriver.test_nvvm_compile_nullary_option": "nvvm",
    "TestNvvmDriver.test_nvvm_support": "nvvm",
    "TestPTDS.test_ptds": "process",
    "TestProfiler.test_profiling": "profiler",
}
COMPILED: Final = frozenset(
    (
        "CudaArraySetting.test_array_assign_all",
        "CudaArraySetting.test_array_assign_column",
        "CudaArraySetting.test_array_assign_deep_subarray",
        "CudaArraySetting.test_array_assign_row",
        "CudaArraySetting.test_array_assign_subarray",
        "CudaArraySetting.test_broadcast",
        "CudaArraySetting.test_no_sync_default_stream",
        "CudaArraySetting.test_no_sync_supplied_stream",
        "CudaArraySetting.test_rank",
        "CudaArraySetting.test_scalar",
        "CudaArraySetting.test_strides",
        "CudaArraySetting.test_sync",
        "Test3rdPartyContext.test_cudajit_in_attached_primary_context",
        "TestCoreContiguous.test_device_array_like_2d_f_transpose",
        "TestCoreContiguous.test_device_array_like_2d_transpose",
        "TestCudaInlineAsm.test_inline_rsqrt",
        "TestCudaNDArray.test_devicearray_transpose_T",
        "TestCudaNDArray.test_devicearray_transpose_ok",
        "TestLibDevice.test_libdevice_load",
        "TestLinker.test_get_const_mem_size",
        "TestLinker.test_get_local_mem_per_specialized",
        "TestLinker.test_get_local_mem_per_thread",
        "TestLinker.test_get_max_threads_per_block",
        "TestLinker.test_get_no_shared_memory",
        "TestLinker.test_get_shared_mem_per_block",
        "TestLinker.test_get_shared_mem_per_specialized",
        "TestLinker.test_linking_file_with_no_extension_error",
        "TestLinker.test_linking_unknown_filetype_error",
        "TestLinker.test_max_threads_exceeded",
        "TestLinker.test_set_registers_38",
        "TestLinker.test_set_registers_57",
        "TestLinker.test_set_registers_eager",
        "TestLinker.test_try_to_link_nonexistent",
        "TestNvvmDriver.test_nvvm_bad_option",
        "TestNvvmDriver.test_nvvm_compile_simple",
        "TestNvvmDriver.test_nvvm_from_llvm",
        "TestNvvmDriver.test_nvvm_ir_verify_fail",
        "TestNvvmDriver.test_nvvm_warning",
        "TestRecarray.test_recarray",
        "TestRecordDtypeWithStructArrays.test_structured_array2",
        "TestRecordDtypeWithStructArrays.test_structured_array3",
        "TestRecordDtypeWithStructArrays.test_structured_array4",
    )
)
