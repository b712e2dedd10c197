target_link_libraries(${TARGET} PUBLIC PkgConfig::XXHASH PkgConfig::JANSSON)
# The scanners are held to the regular expressions they replace; the library itself uses none.
cmake_language(DEFER CALL target_link_libraries text_pretok_test PRIVATE PkgConfig::PCRE2)
# Fuzz targets that read the test vocabulary.
foreach(fuzz text_bpe_fuzz text_grammar_fuzz)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL target_compile_definitions ${fuzz} PRIVATE
    HOUSE_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\")")
endforeach()
