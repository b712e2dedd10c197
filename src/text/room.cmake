target_link_libraries(${TARGET} PUBLIC PkgConfig::XXHASH PkgConfig::JANSSON)
# The scanners are held to the regular expressions they replace; the library itself uses none.
cmake_language(DEFER CALL target_link_libraries text_pretok_test PRIVATE PkgConfig::PCRE2)
# The fuzz target reads the test vocabulary.
cmake_language(DEFER CALL target_compile_definitions text_bpe_fuzz PRIVATE
  HOUSE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
