target_link_libraries(${TARGET} PUBLIC PkgConfig::ZLIB PkgConfig::ZSTD)
