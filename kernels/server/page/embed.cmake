# Writes a C++ file with the bytes of files: cmake -DOUT=... "-DFILES=a;b" -P embed.cmake. Each becomes an entry of page_files().

set(text "#include \"server/page/page_files.h\"\n\nnamespace llama_run {\n\nstd::map<std::string, std::string> page_files() {\n    return {\n")
foreach(file ${FILES})
    get_filename_component(name ${file} NAME)
    file(READ ${file} bytes HEX)
    string(LENGTH "${bytes}" n_digits)
    math(EXPR n_bytes "${n_digits} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
    # Lines of a bearable length: pieces that follow each other are one string.
    string(REGEX REPLACE "((\\\\x[0-9a-f][0-9a-f]){64})" "\\1\"\n        \"" bytes "${bytes}")
    string(APPEND text "        { \"${name}\", std::string(\"${bytes}\", ${n_bytes}) },\n")
endforeach()
string(APPEND text "    };\n}\n\n} // namespace llama_run\n")
file(WRITE ${OUT} "${text}")
