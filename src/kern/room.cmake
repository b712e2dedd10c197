# Instruction-set flags go on the kernel files alone, so that no wide instruction reaches code that
# runs before pick.c has asked the CPU.
set(kern_x86 FALSE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(kern_x86 TRUE)
endif()
set(avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
set(avx512_vnni ${avx512} -mavx512vnni -mavx512bf16 -mavx512vbmi)
foreach(isa avx2 avx512 avx512_vnni)
  if(kern_x86)
    set_source_files_properties(${dir}/kern_${isa}.c PROPERTIES COMPILE_OPTIONS "${${isa}}")
  endif()
endforeach()
# ref is the meaning, not the speed: at -O3 its 16-lane arrays take gcc over a minute to unroll.
set_source_files_properties(${dir}/kern_ref.c PROPERTIES COMPILE_OPTIONS "-O2")
