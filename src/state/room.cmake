target_link_libraries(${TARGET} PUBLIC PkgConfig::XXHASH)
