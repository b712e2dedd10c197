target_link_libraries(${TARGET} PUBLIC PkgConfig::JANSSON PkgConfig::XXHASH)
