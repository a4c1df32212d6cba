# Made by `python -m tools.autogen.mesa` from PyPI package tinymesa 25.2.7.2: do not edit.
#   tinymesa/libtinymesa.so
#     sha256 e72beabc093c05fa2795821041f49860c32d44dcc2ed71749b75061e488921fb
# Mesa is under the MIT licence; here are numbers of its debug information alone.
"""NIR, NAK and ir3 of libtinymesa: layouts of structures, numbers of operations."""

from __future__ import annotations

PACKAGE: str = "tinymesa"
VERSION: str = "25.2.7.2"

# structure -> bytes
SIZES: dict[str, int] = {
    "nir_builder": 40, "nir_def": 32, "nir_src": 32, "nir_alu_instr": 72, "nir_alu_src": 48,
    "nir_load_const_instr": 64, "nir_intrinsic_instr": 120, "nir_shader": 520, "nir_op_info": 56,
    "nir_intrinsic_info": 112, "fd_dev_id": 16, "fd_dev_info": 764, "ir3_compiler_options": 32,
    "ir3_shader_options": 228, "ir3_shader_nir_options": 4, "ir3_shader_key": 80,
    "ir3_shader_variant": 2040, "ir3_const_state": 1424, "nir_load_store_vectorize_options": 32,
    "isa_decode_options": 80, "nak_shader_bin": 752, "nak_shader_info": 728,
    "nak_shader_info_cs": 12, "nak_qmd_info": 160, "nak_qmd_cbuf": 16, "nv_device_info": 128,
}

# structure.member -> (offset, bytes)
FIELDS: dict[str, tuple[int, int]] = {
    "nir_builder.exact": (16, 1), "nir_builder.fp_fast_math": (20, 4),
    "nir_builder.shader": (24, 8), "nir_def.num_components": (28, 1), "nir_def.bit_size": (29, 1),
    "nir_src.ssa": (24, 8), "nir_alu_instr.def": (40, 32), "nir_alu_instr.src": (72, 0),
    "nir_alu_src.src": (0, 32), "nir_alu_src.swizzle": (32, 16),
    "nir_load_const_instr.def": (32, 32), "nir_load_const_instr.value": (64, 0),
    "nir_intrinsic_instr.def": (40, 32), "nir_intrinsic_instr.num_components": (72, 1),
    "nir_intrinsic_instr.const_index": (76, 32), "nir_intrinsic_instr.src": (120, 0),
    "nir_shader.info.workgroup_size": (328, 6), "nir_shader.info.shared_size": (316, 4),
    "nir_shader.info.float_controls_execution_mode": (312, 4), "nir_shader.scratch_size": (464, 4),
    "nir_op_info.name": (0, 8), "nir_op_info.num_inputs": (8, 1), "nir_intrinsic_info.name": (0, 8),
    "nir_intrinsic_info.num_srcs": (8, 1), "fd_dev_id.gpu_id": (0, 4),
    "fd_dev_info.cs_shared_mem_size": (32, 4), "fd_dev_info.num_sp_cores": (68, 4),
    "fd_dev_info.a6xx.reg_size_vec4": (72, 4), "ir3_compiler_options.disable_cache": (1, 1),
    "ir3_compiler_options.bindless_fb_read_descriptor": (4, 4),
    "ir3_compiler_options.bindless_fb_read_slot": (8, 4), "ir3_shader_options.api_wavesize": (0, 4),
    "ir3_shader_options.real_wavesize": (4, 4), "ir3_shader_options.push_consts_type": (8, 4),
    "ir3_shader_options.push_consts_dwords": (16, 4), "ir3_shader_options.const_allocs": (20, 200),
    "ir3_shader_variant.bin": (192, 8), "ir3_shader_variant.const_state": (200, 8),
    "ir3_shader_variant.imm_state.count": (212, 4), "ir3_shader_variant.imm_state.values": (216, 8),
    "ir3_shader_variant.info.size": (224, 4), "ir3_shader_variant.info.sizedwords": (232, 2),
    "ir3_shader_variant.info.max_reg": (248, 1), "ir3_shader_variant.info.max_half_reg": (249, 1),
    "ir3_shader_variant.info.double_threadsize": (254, 1),
    "ir3_shader_variant.constant_data_size": (560, 4), "ir3_shader_variant.branchstack": (564, 4),
    "ir3_shader_variant.instrlen": (572, 4), "ir3_shader_variant.constlen": (576, 4),
    "ir3_shader_variant.pvtmem_size": (580, 4), "ir3_shader_variant.pvtmem_per_wave": (584, 1),
    "ir3_shader_variant.early_preamble": (587, 1), "ir3_shader_variant.shared_size": (588, 4),
    "ir3_shader_variant.inputs_count": (932, 4), "ir3_shader_variant.inputs": (936, 170),
    "ir3_shader_variant.inputs[0].slot": (936, 1), "ir3_shader_variant.inputs[0].regid": (937, 1),
    "ir3_shader_variant.inputs[1]": (941, 5), "ir3_shader_variant.num_samp": (1224, 4),
    "ir3_shader_variant.mergedregs": (1243, 1), "ir3_shader_variant.num_uavs": (1480, 4),
    "ir3_const_state.num_ubos": (0, 4), "ir3_const_state.num_driver_params": (8, 4),
    "ir3_const_state.allocs.max_const_offset_vec4": (236, 4),
    "ir3_const_state.ubo_state.num_enabled": (1408, 4),
    "nir_load_store_vectorize_options.callback": (0, 8),
    "nir_load_store_vectorize_options.modes": (8, 4), "isa_decode_options.gpu_id": (0, 4),
    "isa_decode_options.show_errors": (4, 1), "isa_decode_options.max_errors": (8, 4),
    "nak_shader_bin.info": (0, 728), "nak_shader_bin.code_size": (728, 4),
    "nak_shader_bin.code": (736, 8), "nak_shader_bin.asm_str": (744, 8),
    "nak_shader_info.stage": (0, 4), "nak_shader_info.sm": (4, 1),
    "nak_shader_info.num_gprs": (5, 1), "nak_shader_info.num_control_barriers": (6, 1),
    "nak_shader_info.num_instrs": (12, 4), "nak_shader_info.slm_size": (36, 4),
    "nak_shader_info.crs_size": (40, 4), "nak_shader_info.__bindgen_anon_1": (44, 12),
    "nak_shader_info_cs.local_size": (0, 6), "nak_shader_info_cs.smem_size": (6, 2),
    "nak_qmd_info.addr": (0, 8), "nak_qmd_info.smem_size": (8, 2), "nak_qmd_info.smem_max": (10, 2),
    "nak_qmd_info.global_size": (12, 12), "nak_qmd_info.num_cbufs": (24, 4),
    "nak_qmd_info.cbufs": (32, 128), "nak_qmd_cbuf.index": (0, 4), "nak_qmd_cbuf.size": (4, 4),
    "nak_qmd_cbuf.addr": (8, 8), "nv_device_info.sm": (92, 1),
    "nv_device_info.max_warps_per_mp": (97, 1), "nv_device_info.cls_compute": (106, 2),
}

# operation -> (number, operands)
ALU: dict[str, tuple[int, int]] = {
    "b2f32": (33, 1), "b2f64": (34, 1), "b2i8": (39, 1), "b2i16": (36, 1), "b2i32": (37, 1),
    "b2i64": (38, 1), "bcsel": (115, 3), "f2f16_rtne": (157, 1), "f2f32": (159, 1),
    "f2f64": (160, 1), "f2i8": (166, 1), "f2i16": (163, 1), "f2i32": (164, 1), "f2i64": (165, 1),
    "f2u8": (173, 1), "f2u16": (170, 1), "f2u32": (171, 1), "f2u64": (172, 1), "fabs": (176, 1),
    "fadd": (177, 2), "feq": (213, 2), "ffloor": (222, 1), "ffma": (223, 3), "fge": (226, 2),
    "flt": (240, 2), "fmul": (253, 2), "fneg": (255, 1), "fneu": (260, 2), "frcp": (270, 1),
    "fround_even": (274, 1), "frsq": (275, 1), "ftrunc": (288, 1), "i2f32": (294, 1),
    "i2f64": (295, 1), "i2i8": (301, 1), "i2i16": (298, 1), "i2i32": (299, 1), "i2i64": (300, 1),
    "iabs": (305, 1), "iadd": (306, 2), "iand": (309, 2), "idiv": (313, 2), "ieq": (314, 2),
    "ige": (320, 2), "ilt": (326, 2), "imax": (334, 2), "imin": (335, 2), "imul": (338, 2),
    "ine": (344, 2), "ineg": (348, 1), "inot": (349, 1), "ior": (353, 2), "irem": (354, 2),
    "ishl": (356, 2), "ishr": (357, 2), "isub": (359, 2), "ixor": (361, 2), "mov": (365, 1),
    "pack_64_2x32_split": (380, 2), "u2f32": (412, 1), "u2f64": (413, 1), "u2u8": (419, 1),
    "u2u16": (416, 1), "u2u32": (417, 1), "u2u64": (418, 1), "udiv": (427, 2),
    "ufind_msb": (433, 1), "uge": (435, 2), "ult": (441, 2), "umax": (447, 2), "umin": (449, 2),
    "umod": (451, 2), "ushr": (479, 2),
}

# intrinsic -> (number, operands, {index: its place in const_index})
INTRINSICS: dict[str, tuple[int, int, dict[str, int]]] = {
    "barrier": (46, 0, {"EXECUTION_SCOPE": 0, "MEMORY_MODES": 3, "MEMORY_SCOPE": 1, "MEMORY_SEMANTICS": 2}),
    "decl_reg": (105, 0, {"BIT_SIZE": 2, "NUM_COMPONENTS": 0}),
    "ldc_nv": (213, 2, {"ACCESS": 0, "ALIGN_MUL": 1, "ALIGN_OFFSET": 2}),
    "load_const_ir3": (267, 1, {"BASE": 0}),
    "load_global": (317, 1, {"ACCESS": 0, "ALIGN_MUL": 1, "ALIGN_OFFSET": 2}),
    "load_local_invocation_id": (364, 0, {}), "load_reg": (443, 1, {"BASE": 0}),
    "load_scratch": (482, 1, {"ALIGN_MUL": 0, "ALIGN_OFFSET": 1}),
    "load_shared": (489, 1, {"ALIGN_MUL": 1, "ALIGN_OFFSET": 2, "BASE": 0}),
    "load_workgroup_id": (580, 0, {}), "shuffle_xor": (652, 2, {}),
    "store_global": (669, 2, {"ACCESS": 1, "ALIGN_MUL": 2, "ALIGN_OFFSET": 3, "WRITE_MASK": 0}),
    "store_reg": (685, 2, {"BASE": 0, "WRITE_MASK": 1}),
    "store_scratch": (688, 2, {"ALIGN_MUL": 0, "ALIGN_OFFSET": 1, "WRITE_MASK": 2}),
    "store_shared": (689, 2, {"ALIGN_MUL": 2, "ALIGN_OFFSET": 3, "BASE": 0, "WRITE_MASK": 1}),
}

CONSTANTS: dict[str, int] = {
    "ACCESS_CAN_REORDER": 64, "ACCESS_NON_WRITEABLE": 16,
    "FLOAT_CONTROLS_DENORM_PRESERVE_FP16": 512, "FLOAT_CONTROLS_DENORM_PRESERVE_FP32": 1024,
    "FLOAT_CONTROLS_DENORM_PRESERVE_FP64": 2048, "FLOAT_CONTROLS_INF_PRESERVE_FP16": 8,
    "FLOAT_CONTROLS_INF_PRESERVE_FP32": 16, "FLOAT_CONTROLS_INF_PRESERVE_FP64": 32,
    "FLOAT_CONTROLS_NAN_PRESERVE_FP16": 64, "FLOAT_CONTROLS_NAN_PRESERVE_FP32": 128,
    "FLOAT_CONTROLS_NAN_PRESERVE_FP64": 256, "FLOAT_CONTROLS_ROUNDING_MODE_RTE_FP16": 32768,
    "FLOAT_CONTROLS_ROUNDING_MODE_RTE_FP32": 65536, "FLOAT_CONTROLS_ROUNDING_MODE_RTE_FP64": 131072,
    "FLOAT_CONTROLS_SIGNED_ZERO_PRESERVE_FP16": 1, "FLOAT_CONTROLS_SIGNED_ZERO_PRESERVE_FP32": 2,
    "FLOAT_CONTROLS_SIGNED_ZERO_PRESERVE_FP64": 4, "IR3_CONST_ALLOC_PUSH_CONSTS": 0,
    "IR3_PUSH_CONSTS_PER_STAGE": 1, "IR3_SINGLE_OR_DOUBLE": 1, "MESA_SHADER_COMPUTE": 5,
    "NIR_MEMORY_ACQ_REL": 3, "SCOPE_WORKGROUP": 4, "SYSTEM_VALUE_LOCAL_INVOCATION_ID": 42,
    "SYSTEM_VALUE_WORKGROUP_ID": 47, "nir_jump_break": 2, "nir_var_mem_global": 1048576,
    "nir_var_mem_shared": 524288,
}
