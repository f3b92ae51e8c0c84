/*
 * SentencePiece behind C functions; no exception leaves.
 */
#include "data/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using sentencepiece::SentencePieceProcessor;

static const SentencePieceProcessor *processor(const void *model) {
    return static_cast<const SentencePieceProcessor *>(model);
}

void *hti_spm_open(const char *bytes, size_t count, bool *starved) {
    *starved = false;
    try {
        /* its owner until it is loaded, whatever is thrown */
        std::unique_ptr<SentencePieceProcessor> p(new SentencePieceProcessor);
        if (p->LoadFromSerializedProto(std::string(bytes, count)).ok()) return p.release();
    } catch (const std::bad_alloc &) {
        *starved = true;
    } catch (...) {
    }
    return nullptr;
}

void hti_spm_close(void *model) { delete static_cast<SentencePieceProcessor *>(model); }

int hti_spm_count(const void *model) { return processor(model)->GetPieceSize(); }

const char *hti_spm_piece(const void *model, int id, hti_spm_kind *kind) {
    const SentencePieceProcessor *p = processor(model);
    *kind = p->IsByte(id) ? HTI_SPM_BYTE
            : p->IsControl(id) || p->IsUnknown(id) || p->IsUnused(id) ? HTI_SPM_NOTHING
                                                                      : HTI_SPM_TEXT;
    return p->IdToPiece(id).c_str();
}

int64_t hti_spm_encode(const void *model, const char *text, size_t bytes, int32_t **ids) {
    *ids = nullptr;
    try {
        std::vector<int> out;
        if (!processor(model)->Encode(std::string(text, bytes), &out).ok()) return HTI_SPM_FAILED;
        if (out.empty()) return 0;
        *ids = static_cast<int32_t *>(std::malloc(out.size() * sizeof **ids));
        if (!*ids) return HTI_SPM_STARVED;
        for (size_t i = 0; i < out.size(); i++) (*ids)[i] = out[i];
        return static_cast<int64_t>(out.size());
    } catch (const std::bad_alloc &) {
        return HTI_SPM_STARVED;
    } catch (...) {
        return HTI_SPM_FAILED;
    }
}
