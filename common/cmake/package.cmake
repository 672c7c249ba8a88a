# SPDX-License-Identifier: Apache-2.0
# What is installed, and the Debian package of it: deploy/package.sh.
install(TARGETS swiftcache-broker swiftcache-engine swiftcache-gateway swiftcachectl DESTINATION bin)
install(FILES deploy/systemd/swiftcache-broker.service deploy/systemd/swiftcache-gateway.service
  deploy/systemd/swiftcache-engine@.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/broker.env deploy/systemd/gateway.env DESTINATION /etc/swiftcache)
install(FILES deploy/systemd/engine.env DESTINATION share/doc/swiftcache/examples)
install(FILES README.md ARCHITECTURE.md DESTINATION share/doc/swiftcache)
install(FILES .github/SECURITY.md DESTINATION share/doc/swiftcache/.github)
install(FILES services/README.md DESTINATION share/doc/swiftcache/services)
install(FILES gateway/README.md DESTINATION share/doc/swiftcache/gateway)
install(FILES deploy/README.md DESTINATION share/doc/swiftcache/deploy)
install(PROGRAMS deploy/fetch-model.sh deploy/check-gpu.sh DESTINATION share/doc/swiftcache/deploy)
install(DIRECTORY deploy/examples DESTINATION share/doc/swiftcache/deploy USE_SOURCE_PERMISSIONS
  PATTERN __pycache__ EXCLUDE)
install(FILES LICENSE DESTINATION share/doc/swiftcache RENAME copyright)
install(DIRECTORY deploy/observability DESTINATION share/swiftcache PATTERN "*.py" EXCLUDE PATTERN __pycache__ EXCLUDE)
install(DIRECTORY proto/swiftcache DESTINATION share/swiftcache/proto FILES_MATCHING PATTERN "*.proto")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME swiftcache)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "SwiftCache <swiftcache@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Serves several language models that share their KV-cache memory")
set(CPACK_PACKAGE_DESCRIPTION "A gateway, a broker and an engine for each model, with systemd units, and swiftcachectl. An
engine whose KV-cache memory is full leases the idle memory of the others.")
set(CPACK_SET_DESTDIR ON)  # for /etc
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/postinst ${PROJECT_SOURCE_DIR}/deploy/debian/prerm
  ${PROJECT_SOURCE_DIR}/deploy/debian/postrm ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
