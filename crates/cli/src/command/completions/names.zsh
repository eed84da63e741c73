# A name comes from whoever may make a volume: compadd quotes it, nothing expands it.
_rekindle_names() {
    local -a words_typed=("${(@Q)${(z)LBUFFER}}") dir names
    local at
    for ((at = 2; at <= $#words_typed; at++)); do
        case $words_typed[at] in
            --dir) dir=(--dir "$words_typed[at+1]") ;;
            --dir=*) dir=(--dir "${words_typed[at]#--dir=}") ;;
        esac
    done
    names=(${(f)"$(rekindle volume-names "$@" $dir 2>/dev/null)"})
    compadd -a -- names
}
_rekindle_trash() { _rekindle_names --trash }
_rekindle_nodes() { _rekindle_names --nodes }
