/*
 * Letters for PNG: a few strokes each, so that the program needs no font. A pair of digits is a
 * point, column 0 to 4 and line 0 to 8; capitals end at line 0, small letters at line 2, the
 * baseline is line 6. Capitals without a shape of their own look like small letters.
 */
#include "draw/picture.h"

#include <ctype.h>

static const char *const digits[] = {
    "103041453616050110",          "112026 1636", "01103041420646",
    "011030414233 13334445361605", "36300444",    "400003334445361605",
    "30100105163645443303",        "00404116",    "103041423313020110 1304051636454433",
    "43130201103041453616",
};

static const char *const letters[] = {
    "12324346 441405163645",
    "0006 0312324345361605",
    "4332120305163645",
    "4046 4332120305163645",
    "044443321203051636",
    "30201116 0232",
    "4332120305163645 42473818",
    "0006 0312324346",
    "2226 2020",
    "32372818 3030",
    "0006 320436",
    "102026",
    "0602122326 23324346",
    "0602 0312324346",
    "123243453616050312",
    "0208 0312324345361605",
    "4248 4332120305163645",
    "0602 031232",
    "42120314344536 3606",
    "10152636 0232",
    "020516364542 4246",
    "022642",
    "0216233642",
    "0246 4206",
    "0226 4218",
    "02420646",
};

const char *picture_strokes(char letter) {
    static const struct {
        char letter;
        const char *strokes;
    } others[] = {
        {'A', "062046 1434"},
        {'L', "000646"},
        {'-', "1434"},
        {'.', "2626"},
        {',', "2617"},
        {':', "2323 2626"},
        {'/', "0640"},
        {'=', "0343 0545"},
        {'(', "30212536"},
        {')', "10212516"},
        {'+', "0444 2226"},
        {'*', "1335 3315 0444"},
        {'%', "0640 0101 4545"},
        {'<', "420446"},
        {'>', "024406"},
        {'|', "2027"},
        {'_', "0747"},
        {'\'', "2021"},
        {'#', "1016 3036 0242 0444"},
        {'[', "30202636"},
        {']', "10202616"},
        {';', "2323 2617"},
        {'~', "04133443"},
    };
    if (isdigit((unsigned char)letter)) return digits[letter - '0'];
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i].letter == letter) return others[i].strokes;
    int small = tolower((unsigned char)letter);
    return small >= 'a' && small <= 'z' ? letters[small - 'a'] : "";
}
