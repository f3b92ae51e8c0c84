#!/bin/bash -eu
# OSS-Fuzz: projects/htransformer/build.sh. Every target with its seeds and its dictionary to $OUT;
# CC, CFLAGS, LIB_FUZZING_ENGINE and OUT are given. What the targets share with the system is linked
# statically where it can be: they run on another machine.
cmake -S . -B "$WORK/build" -G Ninja -DBUILD_TESTING=ON -DHT_CUDA=OFF -DHT_FUZZ=ON \
    -DHT_FUZZ_ENGINE="$LIB_FUZZING_ENGINE" -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" \
    -DCMAKE_C_FLAGS="$CFLAGS" -DCMAKE_CXX_FLAGS="$CXXFLAGS" -DCMAKE_FIND_LIBRARY_SUFFIXES=".a;.so"
for seeds in tests/fuzz/seeds/*; do
    name=$(basename "$seeds")
    source=$(echo tests/fuzz/*/"$name".c)
    folder=$(dirname "$source")
    cmake --build "$WORK/build" --target "fuzz_$name" || continue # a library it needs is not there
    cp "$WORK/build/tests/fuzz/fuzz_$name" "$OUT/"
    zip -jq "$OUT/fuzz_${name}_seed_corpus.zip" "$seeds"/*
    dictionary=$folder/$name.dict
    [ -f "$dictionary" ] || dictionary=$folder/any.dict
    cp "$dictionary" "$OUT/fuzz_$name.dict"
done
