// Which sources a library was built from: their digest, left in the file for src/eagle3ref/kernels/native_file.py.

#pragma once

#ifndef EAGLE3REF_SOURCES
#define EAGLE3REF_SOURCES unknown
#endif
#define EAGLE3REF_TEXT_OF(token) #token
#define EAGLE3REF_TEXT(macro) EAGLE3REF_TEXT_OF(macro)

__attribute__((used)) static const char kSources[] = EAGLE3REF_TEXT(EAGLE3REF_SOURCES);
